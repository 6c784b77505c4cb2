"""Small CSV files like those of AG News, and a reference tokenizer."""

import csv

TEXT = """oil prices rise stocks fall after report space mission launch team wins the
game final score market shares software update world leaders meet election results"""
WORDS = TEXT.split()
TRAIN = [
    (number % 4 + 1, " ".join(WORDS[number % 5 : number % 5 + 4]).title(), rest)
    for number in range(40)
    for rest in (" ".join(WORDS[(7 * number + k) % len(WORDS)] for k in range(9)),)
]
TEST = [(4, "Space game", "team wins \\band of oil"), (1, 'A "quoted" title', "café")]


def write_news(folder, train=TRAIN, test=TEST):
    """train.csv and test.csv, with quotes around all fields."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("train", train), ("test", test)):
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    return folder


def plainly(words, vocabulary, length):
    """The tokens of lower-case words, the longest token first; padded with zeros."""
    found = [vocabulary.index("[CLS]")]
    for word in words:
        pieces, start = [], 0
        while start < len(word):
            for end in range(len(word), start, -1):
                piece = "##" * (start > 0) + word[start:end]
                if piece in vocabulary:
                    pieces.append(vocabulary.index(piece))
                    start = end
                    break
            else:
                pieces, start = [vocabulary.index("[UNK]")], len(word)
        found += pieces
    found = [*found[: length - 1], vocabulary.index("[SEP]")]
    return found + [0] * (length - len(found))
