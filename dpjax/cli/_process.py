"""JAX, set up for the process of one command."""

import hashlib
import os
import platform
from pathlib import Path


def configure_jax(no_cache: bool, *, choose_platform: bool = True) -> str:
    """Sets JAX up for one answer; returns the compilation cache's folder, or why there is none."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # XLA remarks on every program that it loads from the cache
    import jax

    if choose_platform and not os.environ.get("JAX_PLATFORMS"):
        jax.config.update("jax_platforms", "cpu")  # a single query gains nothing from starting an accelerator
    if no_cache:
        jax.config.update("jax_enable_compilation_cache", False)
        return "off"
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return os.environ["JAX_COMPILATION_CACHE_DIR"]
    folder = cache_folder()
    try:
        folder.parent.parent.mkdir(parents=True, exist_ok=True)
        for path in (folder.parent, folder):
            path.mkdir(mode=0o700, exist_ok=True)
            if not is_private(path):
                return f"none: {path} can be written by others, or is not yours"
    except OSError as error:
        return f"none: {error}"
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return str(folder)


def cache_folder() -> Path:
    """The user's folder for programs compiled on this kind of processor.

    Home folders are shared between machines, and a program compiled for one processor may crash on another.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))  # to be ignored unless absolute, says the XDG specification
    base = base if base.is_absolute() else Path.home() / ".cache"
    try:
        described = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
        processor = [line for line in described if line.startswith(("model name", "flags", "Features", "CPU part"))]
    except OSError:  # not Linux
        processor = [platform.processor()]
    kind = hashlib.sha256("\n".join([platform.machine(), *processor]).encode()).hexdigest()[:12]
    return base / "dpjax" / kind


def is_private(folder: Path) -> bool:
    """Whether nobody else can write to ``folder``: who writes there runs code in this process."""
    if not hasattr(os, "getuid"):  # Windows: the user's own profile
        return True
    status = folder.stat()
    return status.st_uid == os.getuid() and status.st_mode & 0o022 == 0 and os.access(folder, os.W_OK)
