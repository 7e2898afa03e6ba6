"""Tests that state and caches are always private, and that damaged files are set aside."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sidecar.config import safe_files
from sidecar.conversations.conversation import SavedSession
from sidecar.counting import calibration
from sidecar.counting.calibration import Calibrations, CalibrationStore
from sidecar.workspace.state_folder import State

DEEP = b'{"learned":' + b"[" * 10**6
WRITERS = {
    "cache": """
from click.testing import CliRunner
from sidecar.cli.check import check
assert CliRunner().invoke(check, ["."]).exit_code == 0
""",
    "calibration": """
from sidecar.config.paths import state_dir
from sidecar.counting.calibration import CalibrationStore
store = CalibrationStore(state_dir())
store.loaded().update("k", 10, 12, 1.0)
store.changed()
store.save()
""",
    "ledger": """
from sidecar.config.paths import state_dir
from sidecar.cost.book import CostBook
from sidecar.cost.cost_protocol import CostRecordParams
book = CostBook(state_dir())
book.record(CostRecordParams(model="gpt-5", usage={"prompt_tokens": 5, "completion_tokens": 1}))
""",
    "sessions": """
from sidecar.counting.calibration import CalibrationStore
from sidecar.workspace.state_folder import State
State().save_sessions("file:///w", [], set())
""",
    "prices": """
import threading, http.server, json
from sidecar.config.paths import state_dir
from sidecar.cost.prices import update_prices
LIST = [{"id": "h", "name": "H", "api_pattern": "h", "models": []}]
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(LIST).encode())
    def log_message(self, *_):
        pass
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
update_prices(state_dir() / "prices.json", f"http://127.0.0.1:{server.server_port}/")
""",
}


def write_in_a_process(writer: str, state: Path, work: Path) -> None:
    """Write state in a process whose umask is 0."""
    environment = os.environ | {"TOKEN_SIDECAR_STATE": str(state)}
    script = f"import os\nos.umask(0)\n{WRITERS[writer]}"
    work.mkdir(exist_ok=True)
    (work / "a.txt").write_text("text")
    subprocess.run([sys.executable, "-P", "-c", script], env=environment, cwd=work, check=True)


def modes(folder: Path) -> Iterator[tuple[str, int]]:
    """Return the name and permissions of a folder and of all files and folders in it."""
    for path in (folder, *folder.rglob("*")):
        yield path.name, stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("writer", WRITERS)
def test_the_first_writer_makes_the_folder_private(tmp_path: Path, writer: str) -> None:
    state = tmp_path / "made" / "state"
    write_in_a_process(writer, state, tmp_path / "work")
    found = dict(modes(tmp_path / "made"))
    assert len(found) > 2, "a file was written"
    folders = {path.name for path in tmp_path.rglob("*") if path.is_dir()}
    wrong = {
        name: oct(mode)
        for name, mode in found.items()
        if mode != (0o700 if name in folders else 0o600)
    }
    assert wrong == {}


@pytest.mark.parametrize("writer", ["calibration", "ledger", "sessions", "prices"])
def test_files_that_others_could_read_become_private(tmp_path: Path, writer: str) -> None:
    state = tmp_path / "state"
    write_in_a_process(writer, state, tmp_path / "work")
    for path in (state, *state.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)
    write_in_a_process(writer, state, tmp_path / "work")
    assert {mode for name, mode in modes(state) if not name.endswith(("-wal", "-shm"))} <= {
        0o700,
        0o600,
    }


def test_a_shared_folder_is_left_unchanged(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    safe_files.make_folder(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o1777


@pytest.mark.parametrize("data", [b"\0", b"[]", b'{"learned":', DEEP, b'"text"'])
def test_a_damaged_calibration_is_set_aside_once(
    tmp_path: Path, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "calibration.json").write_bytes(data)
    assert calibration.load_calibrations(folder).to_dict() == Calibrations().to_dict()
    (aside,) = folder.iterdir()
    assert aside.name.startswith("calibration.json.broken-")
    assert aside.read_bytes() == data
    learned = Calibrations()
    learned.update("key", 100, 120, 1.0)
    calibration.save_calibrations(folder, learned)
    assert calibration.load_calibrations(folder).learned("key") is not None
    assert len(caplog.records) == 1


@pytest.mark.parametrize("line", [b"\0", b"{}", b'{"id":' + b"[" * 10**6, b'{"x":' * 10**5])
def test_a_damaged_session_is_set_aside_and_the_others_stay(
    tmp_path: Path, line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    state = State(tmp_path)
    saved = session()
    state.save_sessions("file:///w", [saved], {saved.id})
    (path,) = (tmp_path / "sessions").iterdir()
    damaged = path.read_bytes() + line + b"\n"
    path.write_bytes(damaged)
    for _ in range(2):
        assert State(tmp_path).sessions("file:///w") == [saved]
    (aside,) = (tmp_path / "sessions").glob("*.broken-*")
    assert aside.read_bytes() == damaged
    assert len(caplog.records) == 1


LEARNER = """
import sys
from pathlib import Path
from sidecar.counting.calibration import CalibrationStore
name, folder = sys.argv[1], Path(sys.argv[2])
print("ready", flush=True)
sys.stdin.read()
for number in range(40):
    store = CalibrationStore(folder)
    store.loaded().update(f"{name} {number}", 1000, 1500)
    store.loaded().update("shared", 1000, 1500)
    store.changed()
    store.save()
"""


SAVER = """
import sys
from pathlib import Path
import msgspec
from sidecar.counting.calibration import CalibrationStore
from sidecar.workspace.state_folder import State
state, name = State(Path(sys.argv[2])), sys.argv[1]
template = state.sessions("file:///w")[0]
print("ready", flush=True)
sys.stdin.read()
for number in range(20):
    one = msgspec.structs.replace(template, id=f"{name} {number}")
    state.save_sessions("file:///w", [one], {one.id})
"""


def test_processes_that_calibrate_at_the_same_time_lose_no_key(tmp_path: Path) -> None:
    run_together(LEARNER, tmp_path)
    calibrations = calibration.load_calibrations(tmp_path)
    kept = {key for key in calibrations.to_dict()["learned"] if key != "shared"}
    assert kept == {f"{name} {number}" for name in "abc" for number in range(40)}
    shared = calibrations.learned("shared")
    assert shared is not None
    assert shared.samples == 120


def test_processes_that_save_sessions_at_the_same_time_lose_none(tmp_path: Path) -> None:
    State(tmp_path).save_sessions("file:///w", [session()], set())
    run_together(SAVER, tmp_path)
    kept = {saved.id for saved in State(tmp_path).sessions("file:///w")}
    assert kept == {session().id, *(f"{name} {n}" for name in "abc" for n in range(20))}


def run_together(program: str, folder: Path) -> None:
    """Run three processes of the same program at the same time."""
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", program, name, str(folder)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            )
            for name in "abc"
        ]
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
        assert [process.wait(100) for process in processes] == [0, 0, 0]


def test_state_that_could_not_be_written_is_written_later(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.write_text("where the folder should be")
    store = CalibrationStore(folder)
    store.loaded().update("k", 10, 12)
    store.changed()
    with pytest.raises((FileExistsError, NotADirectoryError)):
        store.save()
    folder.unlink()
    store.save()
    assert calibration.load_calibrations(folder).learned("k") == store.loaded().learned("k")


def session() -> SavedSession:
    return SavedSession(
        id="one",
        model="gpt-5",
        source="protocol",
        updated_at=datetime(2026, 1, 1, tzinfo=UTC),
        limit=None,
        reserve=None,
        compacted=False,
        system=None,
        tools=None,
        sections=[],
        roles=[],
        turns=[],
        anchor=None,
    )


def test_the_command_line_works_with_damaged_state(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "prices.json").write_bytes(b"[" * 10**6)
    (state / "calibration.json").write_bytes(DEEP)
    (tmp_path / "a.txt").write_text("some text")
    command = [sys.executable, "-P", "-m", "sidecar", "count", "--json", "a.txt"]
    runs = [
        subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    assert [json.loads(run.stdout)["total"]["tokens"] for run in runs] == [2, 2]
    assert ["prices.json is unusable" in run.stderr for run in runs] == [True, False]


@pytest.mark.skipif(os.name == "nt", reason="Windows locks belong to a handle")
def test_creating_an_existing_file_keeps_its_locks(tmp_path: Path) -> None:
    """Closing any descriptor of a file would release all locks that the process holds on it."""
    import fcntl

    path = tmp_path / "ledger.db"
    safe_files.create(path)
    other = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    with path.open("r+") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        safe_files.create(path)
        tried = subprocess.run([sys.executable, "-c", other, str(path)], capture_output=True)
    assert b"BlockingIOError" in tried.stderr
