"""Files of official data sets: from the user's folder, or else a verified download."""

import os
import tarfile
import zipfile
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from hetjax.data.readers import DataError

_VARIABLE = "HETJAX_DATA"
_ARCHIVES = (".tgz", ".tar.gz", ".zip")


class DownloadSource(NamedTuple):
    """The download location of a data set, and the names of its files."""

    name: str
    url: str  # of the folder with the files to download
    md5: dict[str, str]  # of each file to download, as published
    wanted: dict[str, tuple[str, ...]]  # the files to read, with alternative names
    archive_folder: str = ""  # in the only archive among the downloads, if any


def source_folder(source: DownloadSource, folder: str | PathLike | None) -> Path:
    """The folder with the source's files: the user's, or the download cache.

    A folder with only some of the files is used, too: its reader then names the missing
    ones, rather than downloading everything because of one forgotten file.
    """
    own = os.environ.get(_VARIABLE)
    if folder is not None:
        looked_in = Path(folder)
    else:
        looked_in = Path(own).expanduser() / source.name if own else None
    if looked_in:
        for spellings in source.wanted.values():
            for name in spellings:
                if (looked_in / name).is_file():
                    return (looked_in / name).parent
    files = ", ".join(source.wanted)
    if folder is not None:
        raise DataError(
            f"{looked_in}: no file of {source.name} is in it; looked for {files}"
        )
    try:
        return _downloaded(source)
    except (OSError, ValueError, tarfile.TarError, zipfile.BadZipFile) as error:
        unset = f"in no folder, as {_VARIABLE} is not set"
        where = f"in {looked_in}" if looked_in else unset
        raise DataError(
            f"{source.name}: looked for {files} {where}, and could not download it "
            f"({error}). Put these files into a folder and pass it as folder=..., or "
            f"put them into {source.name}/ in the folder that {_VARIABLE} names"
        ) from error


def _downloaded(source: DownloadSource) -> Path:
    """The folder of the downloaded files; files in the cache are not fetched again."""
    import pooch  # here, since its import warns in notebooks without ipywidgets

    cache = pooch.os_cache("hetjax") / source.name
    for file, md5 in source.md5.items():
        pooch.retrieve(
            source.url + file,
            known_hash=f"md5:{md5}",
            fname=file,
            path=cache,
            progressbar=True,
        )
    if not source.archive_folder:
        return cache
    (archive,) = (file for file in source.md5 if file.endswith(_ARCHIVES))
    unpacked = _unpacked(cache / archive, source.archive_folder)
    return unpacked if len(source.md5) == 1 else cache  # else with other files


def _unpacked(archive: Path, folder: str) -> Path:
    """Unpacks a folder of the archive next to it, atomically."""
    target = archive.parent / folder
    if not target.is_dir():
        with TemporaryDirectory(dir=archive.parent) as temporary:
            _extract(archive, temporary)
            try:
                (Path(temporary) / folder).rename(target)
            except OSError:
                if not target.is_dir():  # else another process was faster
                    raise
    return target


def _extract(archive: Path, folder: str) -> None:
    """Extract everything, and nothing outside the folder."""
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(folder)  # which drops "..", and the root of a path
        return
    with tarfile.open(archive) as tar:
        # Python before 3.11.4 has no filters; the archive's checksum was verified
        filtered = hasattr(tarfile, "data_filter")
        safely: Any = {"filter": "data"} if filtered else {}
        tar.extractall(folder, **safely)
