"""Is what Linux and a container say about memory understood?"""

import pytest

from inferq.timing.calibration.survey import room_bytes

GIB = 2**30


@pytest.fixture
def machine(tmp_path):
    """32 GiB, of which 20 GiB are available."""
    system = tmp_path / "meminfo"
    system.write_text(f"MemTotal: {32 * 2**20} kB\nMemAvailable: {20 * 2**20} kB\nHugePages_Total: 0\n")
    group = tmp_path / "group"
    group.mkdir()
    return system, group


def test_a_sixteenth_of_the_memory_stays_free(machine):
    assert room_bytes(*machine) == 18 * GIB


def test_a_container_has_what_its_limit_leaves_and_what_it_can_forget(machine):
    system, group = machine
    (group / "memory.max").write_text(f"{8 * GIB}\n")
    (group / "memory.current").write_text(f"{5 * GIB}\n")
    (group / "memory.stat").write_text(f"anon {3 * GIB}\ninactive_file {GIB}\n")
    assert room_bytes(system, group) == 4 * GIB - GIB // 2
    (group / "memory.max").write_text("max\n")
    assert room_bytes(system, group) == 18 * GIB


def test_nothing_is_known_where_nobody_tells(machine, tmp_path):
    assert room_bytes(tmp_path / "nowhere", machine[1]) is None
    machine[0].write_text("MemTotal: many kB\n")
    assert room_bytes(*machine) is None


def test_no_room_is_not_less_than_none(machine):
    machine[0].write_text(f"MemTotal: {32 * 2**20} kB\nMemAvailable: 1 kB\n")
    assert room_bytes(*machine) == 0
