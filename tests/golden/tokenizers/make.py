"""What transformers' tokenizers make of 500 texts, with small vocabularies of each kind that are trained here: tokenizers.json.gz for
tests/integration/data/text_ids.py. The texts are those of token_texts.py whose characters are old and of which transformers' T5
makes what SentencePiece itself makes (tests/integration/data/tokenizers_test.py counts and prints the others). Trainers settle ties
otherwise each time, so another run gives other vocabularies. Usage: .deps/peers_tokenizers/bin/python tests/golden/tokenizers/make.py
"""

import base64
import gzip
import json
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "integration/data"))
import token_files  # noqa: E402
import token_texts  # noqa: E402
from sentencepiece import SentencePieceProcessor  # noqa: E402

TEXTS, ROWS, TOKENS = 500, 100, 16


def main():
    with tempfile.TemporaryDirectory() as work:
        folders = {kind: pathlib.Path(work) / kind for kind in token_files.CLASSES}
        token_files.train_clip(folders["clip"], 2500)
        token_files.train_bert(folders["bert"], 3000)
        token_files.train_sentencepiece(folders["sentencepiece"], 3000)
        files = {kind: {path.name: base64.b64encode(path.read_bytes()).decode() for path in sorted(folder.iterdir())}
                 for kind, folder in folders.items()}
        peers = {kind: token_files.open_peer(kind, folder) for kind, folder in folders.items()}
        original = SentencePieceProcessor(model_file=str(folders["sentencepiece"] / "spiece.model"))
        texts = [text for text in token_texts.texts(900, seed=38) if token_texts.is_old(text)
                 and token_files.pieces(peers["sentencepiece"], [text]) == [original.encode(text)]][:TEXTS]
        assert len(texts) == TEXTS, len(texts)
        golden = {"files": files, "texts": texts, "tokens": TOKENS,
                  "pieces": {kind: token_files.pieces(peer, texts) for kind, peer in peers.items()},
                  "rows": {kind: token_files.rows(peer, texts[:ROWS], TOKENS) for kind, peer in peers.items()},
                  "cleaned": {cleaning: {kind: token_files.pieces(peer, token_files.cleaned(texts[:ROWS], cleaning))
                                         for kind, peer in peers.items()} for cleaning in ("whitespace", "clip")}}
    packed = gzip.compress(json.dumps(golden, separators=(",", ":")).encode(), 9, mtime=0)
    (HERE / "tokenizers.json.gz").write_bytes(packed)
    print(f"{len(packed)} bytes")


if __name__ == "__main__":
    main()
