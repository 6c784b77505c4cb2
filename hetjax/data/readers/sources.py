"""Official data sets by name: from the user's own files, else downloaded once.

If `folder` is given, a function looks only there. Otherwise it looks in
$HETJAX_DATA/NAME, where NAME is its own name, and then downloads into the user's cache.
Downloads are checked against the published checksums. The user's own files are not,
since they may be packed differently.
"""

import os
import tarfile
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from hetjax.data.dataset import Dataset
from hetjax.data.readers import cifar, idx
from hetjax.data.readers.errors import DataError
from hetjax.recipes import by_name

_VARIABLE = "HETJAX_DATA"


class _Source(NamedTuple):
    """The download location of a data set, and the names of its files."""

    name: str
    url: str  # of the folder with the files to download
    md5: dict[str, str]  # of each file to download, as published
    wanted: dict[str, tuple[str, ...]]  # the files to read, with alternative names
    archive_folder: str = ""  # with the files, if the one download is an archive


def _idx_source(name: str, url: str, *md5: str) -> _Source:
    packed = [f"{file}.gz" for file in idx.FILES]
    wanted = {file: idx.spellings(file) for file in idx.FILES}
    return _Source(name, url, dict(zip(packed, md5, strict=True)), wanted)


def _cifar_source(version: cifar.Version, archive: str, md5: str) -> _Source:
    wanted = {file: (file, f"{version.folder}/{file}") for file in version.files}
    url = "https://www.cs.toronto.edu/~kriz/"
    return _Source(version.name, url, {archive: md5}, wanted, version.folder)


_MNIST = _idx_source(
    "mnist",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",  # the original site is closed
    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "d53e105ee54ea40749a09fcbcd1e9432",
    "9fb629c4189551a2d022fa330f9573f3",
    "ec29112dd5afa0611ce80d1b7f02629c",
)
_FASHION_MNIST = _idx_source(
    "fashion_mnist",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "25c81989df183df01b3e8a0aad5dffbe",
    "bef4ecab320f06d8554ea6380940ec79",
    "bb300cfdad3c16e7a12a480ee83cd310",
)
_CIFAR10 = _cifar_source(
    cifar.CIFAR10, "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"
)
_CIFAR100 = _cifar_source(
    cifar.CIFAR100, "cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"
)


@by_name
def mnist(*, folder: str | PathLike | None = None) -> Dataset:
    """MNIST: 60,000 + 10,000 images, x [N, 28, 28, 1] in [0, 1], y [N] of 10 digits.

    Reads `folder`, or $HETJAX_DATA/mnist, or downloads 12 MB. A `DataError` says which
    files were looked for, and where.
    """
    return idx.read_idx_folder(_place(_MNIST, folder), name="mnist")


@by_name
def fashion_mnist(*, folder: str | PathLike | None = None) -> Dataset:
    """Fashion-MNIST: 60,000 + 10,000 images, x [N, 28, 28, 1], y [N] of 10 garments.

    Reads `folder`, or $HETJAX_DATA/fashion_mnist, or downloads 31 MB. A `DataError`
    says which files were looked for, and where.
    """
    return idx.read_idx_folder(_place(_FASHION_MNIST, folder), name="fashion_mnist")


@by_name
def cifar10(*, folder: str | PathLike | None = None) -> Dataset:
    """CIFAR-10: 50,000 + 10,000 images, x [N, 32, 32, 3] in [0, 1], y [N] of 10.

    Reads the binary version in `folder`, or in $HETJAX_DATA/cifar10, or downloads
    170 MB. A `DataError` says which files were looked for, and where.
    """
    return cifar.read_version(cifar.CIFAR10, _place(_CIFAR10, folder))


@by_name
def cifar100(*, folder: str | PathLike | None = None, labels: str = "fine") -> Dataset:
    """CIFAR-100: as CIFAR-10, with 100 classes, or with the 20 "coarse" `labels`.

    Reads the binary version in `folder`, or in $HETJAX_DATA/cifar100, or downloads
    169 MB. A `DataError` says which files were looked for, and where.
    """
    return cifar.read_version(cifar.CIFAR100, _place(_CIFAR100, folder), labels=labels)


def _place(source: _Source, folder: str | PathLike | None) -> Path:
    """The folder with the source's files: the user's own, or the download cache.

    A folder with only some of the files is used, too: its reader then says which are
    missing, rather than downloading everything because of one forgotten file.
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
            f"{looked_in}: no file of {source.name} there; looked for {files}"
        )
    try:
        return _downloaded(source)
    except (OSError, ValueError, tarfile.TarError) as error:
        unset = f"in no folder, as {_VARIABLE} is not set"
        where = f"in {looked_in}" if looked_in else unset
        raise DataError(
            f"{source.name}: looked for {files} {where}; and could not download it "
            f"({error}). Put these files into a folder and pass it as folder=..., or "
            f"put them into {source.name}/ in the folder that {_VARIABLE} names"
        ) from error


def _downloaded(source: _Source) -> Path:
    """The folder of the downloaded files; files in the cache are not fetched again."""
    import pooch  # here: its import warns in notebooks that have no ipywidgets

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
    (archive,) = source.md5
    return _unpacked(cache / archive, source.archive_folder)


def _unpacked(archive: Path, folder: str) -> Path:
    """Unpacks a folder of the archive beside it, atomically."""
    target = archive.parent / folder
    if not target.is_dir():
        with TemporaryDirectory(dir=archive.parent) as temporary:
            with tarfile.open(archive) as tar:
                # Python before 3.11.4 has no filters; the archive's checksum is known
                filtered = hasattr(tarfile, "data_filter")
                safely: Any = {"filter": "data"} if filtered else {}
                tar.extractall(temporary, **safely)
            try:
                (Path(temporary) / folder).rename(target)
            except OSError:
                if not target.is_dir():  # else another process was faster
                    raise
    return target
