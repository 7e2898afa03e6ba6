"""The sample configuration, from `sample.toml` and `sample_user.toml`."""

from __future__ import annotations

from sidecar import typed


def sample(*, user: bool) -> str:
    """Return a sample configuration with all keys commented out.

    Args:
        user: Whether to include the keys that may be set only in the user's own file.
    """
    project = typed.read_text("sidecar.config", "sample.toml")
    if not user:
        return project
    own = typed.read_text("sidecar.config", "sample_user.toml")
    return project.replace("Project settings", "User settings") + own
