class C:
    pass


cfg = C()
cfg.scale = 2.0
