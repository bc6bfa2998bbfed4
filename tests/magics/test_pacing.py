"""What is shown of a flood of updates and clears."""

from __future__ import annotations

from ipy_sandbox.magics.pacing import Pacer
from ipy_sandbox.models import ClearOutput, Display, Event, Stdout


class Scene:
    """A pacer with a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.shown: list[Event] = []
        self.pacer = Pacer(self.shown.append, interval=0.1, clock=lambda: self.now)

    def add(self, *events: Event) -> None:
        for event in events:
            self.pacer.add(event)


def update(n: int, display_id: str = "a") -> Display:
    return Display({"text/plain": str(n)}, display_id=display_id, update=True)


def test_a_display_is_updated_at_once_and_then_ten_times_a_second() -> None:
    scene = Scene()
    scene.add(update(1), update(2), update(3))
    assert scene.shown == [update(1)]
    assert scene.pacer.emit_due() == 0.1
    scene.now = 0.1
    assert scene.pacer.emit_due() is None
    assert scene.shown == [update(1), update(3)]


def test_the_last_state_is_always_shown() -> None:
    scene = Scene()
    scene.add(*(update(n) for n in range(1000)), update(7, "b"))
    scene.pacer.flush()
    assert scene.shown == [update(0), update(7, "b"), update(999)]


def test_streams_and_new_displays_are_never_held_back() -> None:
    scene = Scene()
    new = Display({"text/plain": "x"})
    scene.add(update(1), update(2), Stdout("a"), new, Stdout("b"))
    assert scene.shown == [update(1), Stdout("a"), new, Stdout("b")]


def test_frames_between_two_clears_that_nobody_would_see_are_left_out() -> None:
    scene = Scene()
    for n in range(100):
        scene.add(ClearOutput(wait=True), Stdout(str(n)))
    assert scene.shown == [ClearOutput(wait=True), Stdout("0")]
    scene.now = 0.1
    scene.pacer.emit_due()
    assert scene.shown[2:] == [ClearOutput(wait=True), Stdout("99")]
    scene.add(Stdout("after"))
    assert scene.shown[-1] == Stdout("after")


def test_an_update_of_a_display_in_a_held_frame_comes_after_it() -> None:
    scene = Scene()
    born = Display({"text/plain": "0"}, display_id="a")
    scene.add(ClearOutput(), ClearOutput(), born, update(1))
    assert scene.shown == [ClearOutput()]
    scene.pacer.flush()
    assert scene.shown == [ClearOutput(), ClearOutput(), born, update(1)]
