"""Official data sets by name: from the user's files, or else downloaded once.

If `folder` is given, a function looks only there. Otherwise it looks in
$HETJAX_DATA/NAME, where NAME is the function's name, and then downloads into the user's
cache. Downloads are checked against the published checksums. The user's files are not,
since they may be packed differently.
"""

from os import PathLike
from pathlib import Path

from hetjax.data.dataset import Dataset
from hetjax.data.readers import ag_news as news
from hetjax.data.readers import cifar, flowers, idx
from hetjax.data.readers import tiny_imagenet as tiny
from hetjax.data.readers.downloads import DownloadSource, source_folder
from hetjax.data.readers.images import check_arguments, read_images
from hetjax.recipes import by_name


def _idx_source(name: str, url: str, *md5: str) -> DownloadSource:
    packed = [f"{file}.gz" for file in idx.FILES]
    wanted = {file: idx.spellings(file) for file in idx.FILES}
    return DownloadSource(name, url, dict(zip(packed, md5, strict=True)), wanted)


def _cifar_source(version: cifar.Version, archive: str, md5: str) -> DownloadSource:
    wanted = {file: (file, f"{version.folder}/{file}") for file in version.files}
    url = "https://www.cs.toronto.edu/~kriz/"
    return DownloadSource(version.name, url, {archive: md5}, wanted, version.folder)


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
_FLOWERS102 = DownloadSource(
    "flowers102",
    "https://www.robots.ox.ac.uk/~vgg/data/flowers/102/",
    {
        "102flowers.tgz": "52808999861908f626f3c1f4e79d11fa",
        "imagelabels.mat": "e0620be6f572b9609742df49c70aed4d",
        "setid.mat": "a5357ecc9cb78c4bef273ce3793fc85c",
    },
    {file: (file, f"flowers-102/{file}") for file in flowers.FILES},
    flowers.FOLDER,
)
_TINY_IMAGENET = DownloadSource(
    "tiny_imagenet",
    "http://cs231n.stanford.edu/",
    {"tiny-imagenet-200.zip": "90528d7ca1a48142e341f4ef8d21d0de"},
    {file: (file, f"tiny-imagenet-200/{file}") for file in tiny.FILES},
    "tiny-imagenet-200",
)
_AG_NEWS = DownloadSource(
    "ag_news",
    "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/",
    {
        "train.csv": "b1a00f826fdfbd249f79597b59e1dc12",
        "test.csv": "d52ea96a97a2d943681189a97654912d",
    },
    {file: (file, f"ag_news_csv/{file}") for file in news.FILES},
)


@by_name
def mnist(*, folder: str | PathLike | None = None) -> Dataset:
    """MNIST: 60,000 + 10,000 images, x [N, 28, 28, 1] in [0, 1], y [N] of 10 digits.

    Reads `folder`, or $HETJAX_DATA/mnist, or downloads 12 MB. A `DataError` says which
    files were looked for, and where.
    """
    return idx.read_idx_folder(source_folder(_MNIST, folder), name="mnist")


@by_name
def fashion_mnist(*, folder: str | PathLike | None = None) -> Dataset:
    """Fashion-MNIST: 60,000 + 10,000 images, x [N, 28, 28, 1], y [N] of 10 garments.

    Reads `folder`, or $HETJAX_DATA/fashion_mnist, or downloads 31 MB. A `DataError`
    says which files were looked for, and where.
    """
    return idx.read_idx_folder(
        source_folder(_FASHION_MNIST, folder), name="fashion_mnist"
    )


@by_name
def cifar10(*, folder: str | PathLike | None = None) -> Dataset:
    """CIFAR-10: 50,000 + 10,000 images, x [N, 32, 32, 3] in [0, 1], y [N] of 10.

    Reads the binary version in `folder`, or in $HETJAX_DATA/cifar10, or downloads
    170 MB. A `DataError` says which files were looked for, and where.
    """
    return cifar.read_version(cifar.CIFAR10, source_folder(_CIFAR10, folder))


@by_name
def cifar100(*, folder: str | PathLike | None = None, labels: str = "fine") -> Dataset:
    """CIFAR-100: as CIFAR-10, with 100 classes, or with the 20 "coarse" `labels`.

    Reads the binary version in `folder`, or in $HETJAX_DATA/cifar100, or downloads
    169 MB. A `DataError` says which files were looked for, and where.
    """
    return cifar.read_version(
        cifar.CIFAR100, source_folder(_CIFAR100, folder), labels=labels
    )


@by_name
def flowers102(
    *,
    folder: str | PathLike | None = None,
    size: int = 256,
    split: str = "swapped",
    cache: str | PathLike | None = None,
    workers: int | None = None,
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
    check_arguments(size, workers)
    flowers.check_split(split)
    found = flowers.find_flowers(source_folder(_FLOWERS102, folder), split)
    return read_images(
        found,
        f"flowers102 {split}",
        size=size,
        cache=cache,
        workers=workers,
        verify=verify,
    )


@by_name
def tiny_imagenet(
    *,
    folder: str | PathLike | None = None,
    size: int = 64,
    cache: str | PathLike | None = None,
    workers: int | None = None,
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
    check_arguments(size, workers)
    found = tiny.find_tiny_imagenet(source_folder(_TINY_IMAGENET, folder))
    return read_images(
        found, "tiny_imagenet", size=size, cache=cache, workers=workers, verify=verify
    )


@by_name
def ag_news(
    *,
    folder: str | PathLike | None = None,
    length: int = 256,
    vocabulary: str | PathLike | None = None,
    vocabulary_size: int = 30_522,
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
    news.check_arguments(length, vocabulary, vocabulary_size)
    files = news.files_in(found := source_folder(_AG_NEWS, folder))
    if vocabulary is None and (found / news.VOCABULARY).is_file():
        vocabulary = found / news.VOCABULARY
    chosen = int(vocabulary_size) if vocabulary is None else Path(vocabulary)
    return news.read_tokens(files, int(length), chosen, cache)
