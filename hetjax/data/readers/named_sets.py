"""Official data sets by name: from the user's files, or else downloaded once.

If `folder` is given, a function looks only there. Otherwise it looks in
$HETJAX_DATA/NAME, where NAME is the function's name, and then downloads into the user's
cache. Downloads are checked against the published checksums. The user's files are not,
since they may be packed differently. A `DataError` says which files were looked for,
and where.
"""

import os
import tarfile
import zipfile
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal, NamedTuple

from hetjax.arguments import Bounds, Count, checked
from hetjax.data.dataset import Dataset
from hetjax.data.readers import DataError, image_folder
from hetjax.data.readers import ag_news as news
from hetjax.data.readers import image_arrays as arrays
from hetjax.data.readers.images import Side, read_images
from hetjax.data.readers.text_files import SUFFIXES
from hetjax.recipes import by_name

_VARIABLE = "HETJAX_DATA"
_ARCHIVES = (".tgz", ".tar.gz", ".zip")


class DownloadSource(NamedTuple):
    """The download location of a data set, and the names of its files."""

    name: str
    url: str  # of the folder with the files to download
    md5: dict[str, str]  # of each file to download, as published
    wanted: tuple[str, ...]  # the files to read, also with a suffix of a packer
    archive_folder: str = ""  # in the only archive among the downloads, if any


_MNIST = DownloadSource(
    "mnist",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",  # the original site is closed
    {
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    },
    arrays.IDX_FILES,
)
_FASHION_MNIST = DownloadSource(
    "fashion_mnist",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    {
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    },
    arrays.IDX_FILES,
)
_CIFAR10 = DownloadSource(
    "cifar10",
    "https://www.cs.toronto.edu/~kriz/",
    {"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"},
    arrays.CIFAR10.files,
    arrays.CIFAR10.folder,
)
_CIFAR100 = DownloadSource(
    "cifar100",
    "https://www.cs.toronto.edu/~kriz/",
    {"cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8"},
    arrays.CIFAR100.files,
    arrays.CIFAR100.folder,
)
_FLOWERS102 = DownloadSource(
    "flowers102",
    "https://www.robots.ox.ac.uk/~vgg/data/flowers/102/",
    {
        "102flowers.tgz": "52808999861908f626f3c1f4e79d11fa",
        "imagelabels.mat": "e0620be6f572b9609742df49c70aed4d",
        "setid.mat": "a5357ecc9cb78c4bef273ce3793fc85c",
    },
    (image_folder.FLOWER_SPLITS, image_folder.FLOWER_LABELS),
    image_folder.FLOWER_FOLDER,
)
_TINY_IMAGENET = DownloadSource(
    "tiny_imagenet",
    "http://cs231n.stanford.edu/",
    {"tiny-imagenet-200.zip": "90528d7ca1a48142e341f4ef8d21d0de"},
    (image_folder.IDS,),
    "tiny-imagenet-200",
)
_AG_NEWS = DownloadSource(
    "ag_news",
    "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/",
    {
        "train.csv": "b1a00f826fdfbd249f79597b59e1dc12",
        "test.csv": "d52ea96a97a2d943681189a97654912d",
    },
    tuple(news.FILES.values()),
)
# folders in which these files lie in other packagings
_PACKED_IN = {"flowers102": "flowers-102", "ag_news": "ag_news_csv"}


def source_folder(source: DownloadSource, folder: str | PathLike | None) -> Path:
    """The folder with the source's files: the user's, or the download cache.

    A folder with only some of the files is used, too: its reader then names the missing
    ones, rather than downloading everything because of one forgotten file.
    """
    own = os.environ.get(_VARIABLE)
    looked_in = Path(own).expanduser() / source.name if own else None
    if folder is not None:
        looked_in = Path(folder)
    if looked_in:
        inside = _PACKED_IN.get(source.name, source.archive_folder)
        for place in (looked_in, looked_in / inside):
            for file in source.wanted:
                for name in arrays.idx_spellings(file):
                    if any((place / f"{name}{end}").is_file() for end in SUFFIXES):
                        return place
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
    unpacked = cache / source.archive_folder
    if not unpacked.is_dir():
        (archive,) = (file for file in source.md5 if file.endswith(_ARCHIVES))
        with TemporaryDirectory(dir=cache) as temporary:
            unpack = pooch.Unzip if archive.endswith(".zip") else pooch.Untar
            unpack(extract_dir=temporary)(str(cache / archive), "download", None)
            try:
                (Path(temporary) / source.archive_folder).rename(unpacked)
            except OSError:
                if not unpacked.is_dir():  # else another process was faster
                    raise
    return unpacked if len(source.md5) == 1 else cache  # else with other files


@by_name
@checked
def mnist(*, folder: str | PathLike | None = None) -> Dataset:
    """MNIST: 60,000 + 10,000 images, x [N, 28, 28, 1] in [0, 1], y [N] of 10 digits.

    Reads `folder`, or $HETJAX_DATA/mnist, or downloads 12 MB.
    """
    return arrays.read_idx_folder(source_folder(_MNIST, folder), name="mnist")


@by_name
@checked
def fashion_mnist(*, folder: str | PathLike | None = None) -> Dataset:
    """Fashion-MNIST: 60,000 + 10,000 images, x [N, 28, 28, 1], y [N] of 10 garments.

    Reads `folder`, or $HETJAX_DATA/fashion_mnist, or downloads 31 MB.
    """
    return arrays.read_idx_folder(
        source_folder(_FASHION_MNIST, folder), name="fashion_mnist"
    )


@by_name
@checked
def cifar10(*, folder: str | PathLike | None = None) -> Dataset:
    """CIFAR-10: 50,000 + 10,000 images, x [N, 32, 32, 3] in [0, 1], y [N] of 10.

    Reads the binary version in `folder`, or $HETJAX_DATA/cifar10, or downloads 170 MB.
    """
    return arrays.read_cifar_version(arrays.CIFAR10, source_folder(_CIFAR10, folder))


@by_name
@checked
def cifar100(
    *,
    folder: str | PathLike | None = None,
    labels: Literal["fine", "coarse"] = "fine",
) -> Dataset:
    """CIFAR-100: as CIFAR-10, with 100 classes, or with the 20 "coarse" `labels`.

    Reads the binary version in `folder`, or $HETJAX_DATA/cifar100, or downloads 169 MB.
    """
    return arrays.read_cifar_version(
        arrays.CIFAR100, source_folder(_CIFAR100, folder), labels=labels
    )


@by_name
@checked
def flowers102(
    *,
    folder: str | PathLike | None = None,
    size: Side = 256,
    split: Literal["swapped", "official"] = "swapped",
    cache: str | PathLike | None = None,
    workers: Count | None = None,
    verify: bool | None = None,
) -> Dataset:
    """Oxford Flowers102: 8,189 photographs, x [N, size, size, 3] uint8, y [N] of 102.

    `split` "swapped" trains on the 6,149 images of the official test split and tests on
    the 2,040 of the training and validation splits, as Biased Local SGD does
    (arXiv:2508.08540, appendix A.2); "official" trains on these 2,040 and tests on the
    6,149. Classes are counted from zero, and from one in imagelabels.mat.

    Reads jpg/, imagelabels.mat and setid.mat in `folder`, or in
    $HETJAX_DATA/flowers102, or downloads 345 MB. Images are decoded on the first call
    and cached; `cache`, `workers` and `verify` are those of `read_image_folder`. The
    cache takes 1.6 GB for size=256. A `DataError` names missing or damaged files.
    Source: Nilsback and Zisserman (2008), www.robots.ox.ac.uk/~vgg/data/flowers/102.
    """
    found = image_folder.find_flowers(source_folder(_FLOWERS102, folder), split)
    return read_images(
        found,
        f"flowers102 {split}",
        size=size,
        cache=cache,
        workers=workers,
        verify=verify,
    )


@by_name
@checked
def tiny_imagenet(
    *,
    folder: str | PathLike | None = None,
    size: Side = 64,
    cache: str | PathLike | None = None,
    workers: Count | None = None,
    verify: bool | None = None,
) -> Dataset:
    """Tiny ImageNet: 100,000 + 10,000 images, x [N, size, size, 3] uint8, y [N] of 200.

    The classes are the WordNet ids in wnids.txt in sorted order, as in torchvision's
    `ImageFolder`; the file has another order. The test split is the validation split,
    since the labels of the test images are not published. Gray images become RGB. A
    `size` other than 64 resizes the images.

    Reads the original files in `folder`, or in $HETJAX_DATA/tiny_imagenet, or downloads
    248 MB. Images are decoded on the first call and cached; `cache`, `workers` and
    `verify` are those of `read_image_folder`. The cache takes 1.4 GB for size=64. A
    `DataError` names missing or damaged files. Source:
    cs231n.stanford.edu/tiny-imagenet-200.zip.
    """
    found = image_folder.find_tiny_imagenet(source_folder(_TINY_IMAGENET, folder))
    return read_images(
        found, "tiny_imagenet", size=size, cache=cache, workers=workers, verify=verify
    )


@by_name
@checked
def ag_news(
    *,
    folder: str | PathLike | None = None,
    length: Annotated[int, Bounds(low=3, high=1 << 16)] = 256,
    vocabulary: str | PathLike | None = None,
    vocabulary_size: Annotated[int, Bounds(low=6)] = 30_522,
    cache: str | PathLike | None = None,
) -> Dataset:
    r"""AG News: 120,000 + 7,600 texts as tokens, x [N, length], y [N] of 4 topics.

    A text is the title, a space and the description. Each backslash, a line break in
    these files, becomes a space; HTML in the texts is not removed. Tokens are those of
    BERT's lower-case WordPiece: [CLS] ... [SEP], truncated to `length`, and padded with
    0, which is [PAD]. x is uint16 (int32 for a vocabulary of more than 65,536 tokens),
    mapped and read-only; y: [N] int32.

    `vocabulary` is a vocab.txt with one token per line, such as bert-base-uncased's; by
    default the one next to train.csv. Without either, a WordPiece vocabulary of at most
    `vocabulary_size` tokens is trained on the training split, deterministically;
    `Dataset.notes` has its path.

    Reads train.csv and test.csv in `folder`, or in $HETJAX_DATA/ag_news, or downloads
    31 MB. The tokens are cached in `cache`, or the user's cache folder. A `DataError`
    names the file and line of an error. Needs the package tokenizers:
    pip install "hetjax[text]". Source: Zhang, Zhao and LeCun (2015).
    """
    news.tokenizers_package()
    root = source_folder(_AG_NEWS, folder)
    if vocabulary is None and (root / news.VOCABULARY).is_file():
        vocabulary = root / news.VOCABULARY
    chosen = vocabulary_size if vocabulary is None else Path(vocabulary)
    return news.read_tokens(root, length, chosen, cache)
