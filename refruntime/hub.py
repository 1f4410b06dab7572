"""torch.hub: weights from the network, kept on disk.

State
-----
The folder that files are kept in, if a program has set one.

Invariants
----------
* A file appears under its name only when it is complete, and when its checksum was right.
* Code is never fetched: only weights are, and they are read by the restricted unpickler.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from urllib.request import Request, urlopen

from refruntime.errors import ArgumentValueError
from refruntime.serialization import load

__all__ = ["download_url_to_file", "get_dir", "load_state_dict_from_url", "set_dir"]

_folder: str | None = None
# The checksum at the end of a file name: ``resnet18-f37072fd.pth``.
_CHECKSUM = re.compile(r"-([a-f0-9]*)\.")


def get_dir() -> str:
    """Return the folder that files are kept in.

    It is what `set_dir` set, else ``$TORCH_HOME/hub``, else ``~/.cache/torch/hub``.
    """
    if _folder is not None:
        return _folder
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache"))
    home = Path(os.environ.get("TORCH_HOME", cache / "torch"))
    return str(home.expanduser() / "hub")


def set_dir(d: str | os.PathLike[str]) -> None:
    """Set the folder that files are kept in."""
    global _folder
    _folder = str(Path(d).expanduser())


def download_url_to_file(
    url: str, dst: str, hash_prefix: str | None = None, progress: bool = True
) -> None:
    """Fetch a file.

    Parameters
    ----------
    url : str
        Where it is.
    dst : str
        Where it goes.
    hash_prefix : str, optional
        How its SHA-256 checksum must begin.
    progress : bool
        Say what is fetched.

    Raises
    ------
    ArgumentValueError
        If the checksum is another one.
    """
    if progress:
        print(f"Downloading: {url!r} to {dst}")
    target = Path(dst)
    checksum = hashlib.sha256()
    request = Request(url, headers={"User-Agent": "refruntime.hub"})
    with (
        urlopen(request) as source,
        tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as part,
    ):
        while chunk := source.read(1 << 20):
            part.write(chunk)
            checksum.update(chunk)
    if hash_prefix and not checksum.hexdigest().startswith(hash_prefix):
        Path(part.name).unlink()
        raise ArgumentValueError(
            "download_url_to_file", what="invalid hash value", expected=hash_prefix,
            got=checksum.hexdigest()[: len(hash_prefix)], remedy="fetch it again",
        )  # fmt: skip
    shutil.move(part.name, target)


def load_state_dict_from_url(
    url: str, model_dir: str | None = None, map_location: Any = None, progress: bool = True,
    check_hash: bool = False, file_name: str | None = None, weights_only: bool = True,
) -> Any:  # fmt: skip
    """Return the weights at an address, fetched once.

    Parameters
    ----------
    url : str
        Where they are.
    model_dir : str, optional
        Where they are kept; default ``checkpoints`` below `get_dir`.
    map_location, weights_only
        As in `load`.
    progress : bool
        Say what is fetched.
    check_hash : bool
        Compare the checksum with the one in the file's name.
    file_name : str, optional
        Under which name the file is kept; default the last part of the address.
    """
    folder = Path(model_dir or Path(get_dir()) / "checkpoints")
    folder.mkdir(parents=True, exist_ok=True)
    name = file_name or Path(urlparse(url).path).name
    path = folder / name
    if not path.exists():
        found = _CHECKSUM.search(name) if check_hash else None
        download_url_to_file(url, str(path), found.group(1) if found else None, progress)
    return load(str(path), map_location=map_location, weights_only=weights_only)
