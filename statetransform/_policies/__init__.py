"""What the policies are made of: asking them, applying them, combining them. Their names are in `policies`."""
