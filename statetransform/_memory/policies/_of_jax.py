"""JAX's own policies, those with arguments made into objects that remember them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax

from ._policy import Policy, Wrapped
from ._select import any_of

_jax = jax.checkpoint_policies


def _made(factory: Callable[..., Any], *args: Any, **kwargs: Any) -> Wrapped:
    where = factory.__name__
    for name in (*args, *[name for names in kwargs.values() if isinstance(names, list) for name in names]):
        if not isinstance(name, str):
            listed = name if isinstance(name, list | tuple | set | frozenset) else ()
            written = ", ".join(map(repr, listed)) or "'a', 'b'"
            how = f" Write {where}({written})." if args else ""
            raise TypeError(f"policies.{where}: a name is text, not {name!r} of type {type(name).__name__}.{how}")
    arguments = [*map(repr, args), *[f"{key}={value!r}" for key, value in kwargs.items()]]
    memories = tuple(value for key, value in kwargs.items() if key.startswith("offload_"))
    return Wrapped(factory(*args, **kwargs), f"{where}({', '.join(arguments)})", memories)


def save_only_these_names(*names_which_can_be_saved: str) -> Policy:
    """Saves the values that :func:`~statetransform.transform.checkpoint_name` gave one of these names, nothing else.

    Use it if you know which intermediates are expensive: name them in the model, and list the names.

    >>> save_only_these_names("attention", "hidden")
    save_only_these_names('attention', 'hidden')
    """
    return _made(_jax.save_only_these_names, *names_which_can_be_saved)


def save_any_names_but_these(*names_not_to_save: str) -> Policy:
    """Saves every named value except those with one of these names.

    >>> save_any_names_but_these("logits")
    save_any_names_but_these('logits')
    """
    return _made(_jax.save_any_names_but_these, *names_not_to_save)


def save_anything_except_these_names(*names_not_to_save: str) -> Policy:
    """Saves everything, despite its name: the value that was given a name is also there without the name, and JAX saves
    that one. To recompute some values and keep others, name the others and use :func:`save_only_these_names` or
    :func:`save_any_names_but_these`.

    >>> save_anything_except_these_names("logits")
    save_anything_except_these_names('logits')
    """
    return _made(_jax.save_anything_except_these_names, *names_not_to_save)


def save_from_both_policies(policy_1: Callable[..., Any], policy_2: Callable[..., Any]) -> Policy:
    """Saves what either of two policies saves: :func:`any_of` of two, which also takes policies that offload."""
    return any_of(policy_1, policy_2)


def offload_dot_with_no_batch_dims(offload_src: str, offload_dst: str) -> Policy:
    """Moves the results of matrix products without batch dimensions to another memory, and recomputes the rest.

    For when the device's memory is short and the link to the host is idle.

    >>> offload_dot_with_no_batch_dims("device", "pinned_host")
    offload_dot_with_no_batch_dims(offload_src='device', offload_dst='pinned_host')
    """
    return _made(_jax.offload_dot_with_no_batch_dims, offload_src=offload_src, offload_dst=offload_dst)


def save_and_offload_only_these_names(
    *,
    names_which_can_be_saved: Iterable[str],
    names_which_can_be_offloaded: Iterable[str],
    offload_src: str,
    offload_dst: str,
) -> Policy:
    """Saves the values with some names, moves those with others to another memory, and recomputes the rest.

    >>> save_and_offload_only_these_names(
    ...     names_which_can_be_saved=["a"],
    ...     names_which_can_be_offloaded=["b"],
    ...     offload_src="device",
    ...     offload_dst="pinned_host",
    ... )
    save_and_offload_only_these_names(names_which_can_be_saved=['a'], names_which_can_be_offloaded=['b'], ...)
    """
    given = {
        "names_which_can_be_saved": names_which_can_be_saved,
        "names_which_can_be_offloaded": names_which_can_be_offloaded,
    }
    for key, names in given.items():
        if isinstance(names, str):  # its letters would be taken for names
            raise TypeError(
                f"policies.save_and_offload_only_these_names: `{key}` is a list of names, not the text {names!r}. "
                f"Write [{names!r}]."
            )
    return _made(
        _jax.save_and_offload_only_these_names,
        **{key: list(names) for key, names in given.items()},
        offload_src=offload_src,
        offload_dst=offload_dst,
    )
