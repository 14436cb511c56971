"""Where the named data sets come from: how each is read, and the SHA-256 of its original files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnknn.data import cifar, idx, uci

PLACES = {
    "UCI": "the UCI Machine Learning Repository",
    "Toronto": "the CIFAR page of the University of Toronto",
    "LeCun": "the MNIST database of Yann LeCun",
    "Zalando": "the Fashion-MNIST repository of Zalando Research",
}


@dataclass(frozen=True, slots=True)
class Source:
    """Where a data set comes from.

    Args:
        target: What the labels are called.
        description: One line on what is to be predicted.
        read: Takes the data folder, gives features and labels.
        files: SHA-256 of each file below the data folder; none for scikit-learn's own sets.
        title: The set's name where the files come from.
        place: Where the files come from, a key of ``PLACES``.
        train_count: Leading rows that form the official training set, or None.
        image_shape: Height and width where rows are images.
        pictures: Whether the features are images of bytes, not a table.
    """

    target: str
    description: str
    read: Callable[[Path], tuple[Any, NDArray[Any]]]
    files: tuple[tuple[str, str], ...] = ()
    title: str = ""
    place: str = "UCI"
    train_count: int | None = None
    image_shape: tuple[int, int] | None = None
    pictures: bool = False


def _from_sklearn(loader: str) -> Callable[[Path], tuple[Any, NDArray[Any]]]:
    """A reader of one of scikit-learn's sets: named columns, and labels by name."""

    def read(_: Path) -> tuple[Any, NDArray[Any]]:
        from sklearn import datasets

        bunch = getattr(datasets, loader)(as_frame=True)
        return bunch.data, np.asarray(bunch.target_names).astype(str)[bunch.target.to_numpy()]

    return read


def _digits(_: Path) -> tuple[Any, NDArray[Any]]:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return bunch.data, bunch.target.astype(np.int64)


_WINE_FILES = {
    "red": "4a402cf041b025d4566d954c3b9ba8635a3a8a01e039005d97d6a710278cf05e",
    "white": "76c3f809815c17c07212622f776311faeb31e87610d52c26d87d6e361b169836",
}


def _wine_quality(color: str, *, good: bool = False) -> Source:
    taste = (
        f"Whether {color} Portuguese wines taste good, 6 or better"
        if good
        else f"Taste of {color} Portuguese wines"
    )
    return Source(
        target="good" if good else "quality",
        description=f"{taste}, graded by experts, from eleven measures.",
        read=uci.read_wine_quality(color, good=good),
        files=((f"wine-quality/winequality-{color}.csv", _WINE_FILES[color]),),
        title="Wine Quality",
    )


_CIFAR_10 = (
    ("cifar-10-batches-py/batches.meta", "f962466ef690d46b226450fb9aadc74ba4bc64a76aa526b5827fe4bc5c7125cb"),
    ("cifar-10-batches-py/data_batch_1", "54636561a3ce25bd3e19253c6b0d8538147b0ae398331ac4a2d86c6d987368cd"),
    ("cifar-10-batches-py/data_batch_2", "766b2cef9fbc745cf056b3152224f7cf77163b330ea9a15f9392beb8b89bc5a8"),
    ("cifar-10-batches-py/data_batch_3", "0f00d98ebfb30b3ec0ad19f9756dc2630b89003e10525f5e148445e82aa6a1f9"),
    ("cifar-10-batches-py/data_batch_4", "3f7bb240661948b8f4d53e36ec720d8306f5668bd0071dcb4e6c947f78e9682b"),
    ("cifar-10-batches-py/data_batch_5", "d91802434d8376bbaeeadf58a737e3a1b12ac839077e931237e0dcd43adcb154"),
    ("cifar-10-batches-py/test_batch", "f53d8d457504f7cff4ea9e021afcf0e0ad8e24a91f3fc42091b8adef61157831"),
)
_CIFAR_100 = (
    ("cifar-100-python/meta", "a5d4786345c961390f865e93b434dbd5c6904ce880667e0cb888c97d449f28b9"),
    ("cifar-100-python/train", "735e79b04f092ca3d2e6d07f368c0a7d70d48c48d28865950cc24454cf45129b"),
    ("cifar-100-python/test", "4b67687d9933c4db8f0831104447f15b93774f4f464bd0516f0f0f2ac83b7864"),
)
_MNIST = (
    ("MNIST/raw/train-images-idx3-ubyte", "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
    ("MNIST/raw/train-labels-idx1-ubyte", "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
    ("MNIST/raw/t10k-images-idx3-ubyte", "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
    ("MNIST/raw/t10k-labels-idx1-ubyte", "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
)
_FASHION_MNIST = (
    (
        "FashionMNIST/raw/train-images-idx3-ubyte",
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    ),
    (
        "FashionMNIST/raw/train-labels-idx1-ubyte",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    ),
    (
        "FashionMNIST/raw/t10k-images-idx3-ubyte",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    ),
    (
        "FashionMNIST/raw/t10k-labels-idx1-ubyte",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
)

NAMED: dict[str, Source] = {
    "iris": Source("species", "Species of iris flowers from four measures.", _from_sklearn("load_iris")),
    "wine": Source(
        "cultivar",
        "Cultivar of Italian wines from thirteen measures; not Wine Quality.",
        _from_sklearn("load_wine"),
    ),
    "breast-cancer": Source(
        "diagnosis",
        "Malignant or benign, from thirty measures of cell nuclei.",
        _from_sklearn("load_breast_cancer"),
    ),
    "digits": Source("digit", "Handwritten digits of 8 x 8 pixels.", _digits, image_shape=(8, 8)),
    "adult": Source(
        target="income",
        description="Whether a person earns more than 50,000 dollars a year, from census answers.",
        read=uci.read_adult,
        files=(
            ("adult/adult.data", "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d"),
            ("adult/adult.test", "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05"),
        ),
        title="Adult",
        train_count=uci.ADULT_TRAIN_ROWS,
    ),
    "wine-quality-red": _wine_quality("red"),
    "wine-quality-red-good": _wine_quality("red", good=True),
    "wine-quality-white": _wine_quality("white"),
    "wine-quality-white-good": _wine_quality("white", good=True),
    "bank-marketing": Source(
        target="y",
        description="Whether a client subscribes to a term deposit; the duration of the call is left out.",
        read=uci.read_bank_marketing,
        files=(
            (
                "bank-marketing/bank-additional-full.csv",
                "74adfc578bf77a7ff4bb1ba4a9f8709d9e3c6907342959c2c8416847e0afb4d8",
            ),
        ),
        title="Bank Marketing",
    ),
    "letter": Source(
        target="letter",
        description="Printed capital letters from sixteen measures.",
        read=uci.read_letter,
        files=(
            (
                "letter/LetterRecognition.csv",
                "143b56adb63c0d6b7beb6c5b4ecf6e5991707f521a88efa4fdc4b5f7b3ec99a1",
            ),
        ),
        title="Letter Recognition",
    ),
    "german-credit": Source(
        target="credit",
        description="Whether a loan turned out good or bad.",
        read=uci.read_german_credit,
        files=(
            (
                "german-credit/german.csv",
                "ec12a88b9fc14d74ba646ea0410cf7ff4533bec2eb61652f8ad76796bbfec017",
            ),
        ),
        title="Statlog (German Credit Data)",
    ),
    "cifar10": Source(
        target="class",
        description="What a photograph of 32 x 32 pixels shows, out of ten kinds of animals and vehicles.",
        read=cifar.read_cifar10,
        files=_CIFAR_10,
        title="CIFAR-10 (Python)",
        place="Toronto",
        train_count=cifar.TRAIN_ROWS,
        image_shape=(32, 32),
        pictures=True,
    ),
    "cifar100": Source(
        target="class",
        description="What a photograph of 32 x 32 pixels shows, out of a hundred kinds of things.",
        read=cifar.read_cifar100,
        files=_CIFAR_100,
        title="CIFAR-100 (Python)",
        place="Toronto",
        train_count=cifar.TRAIN_ROWS,
        image_shape=(32, 32),
        pictures=True,
    ),
    "mnist": Source(
        target="digit",
        description="Handwritten digits of 28 x 28 pixels.",
        read=idx.read_mnist,
        files=_MNIST,
        title="MNIST",
        place="LeCun",
        train_count=idx.TRAIN_ROWS,
        image_shape=(28, 28),
        pictures=True,
    ),
    "fashion-mnist": Source(
        target="article",
        description="Articles of clothing, in gray and 28 x 28 pixels.",
        read=idx.read_fashion_mnist,
        files=_FASHION_MNIST,
        title="Fashion-MNIST",
        place="Zalando",
        train_count=idx.TRAIN_ROWS,
        image_shape=(28, 28),
        pictures=True,
    ),
}
