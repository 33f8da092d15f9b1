"""The HTML page in a real browser without a network: found, clicked, searched, switched, and no complaint."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import autotp
from autotp.report.diff.data import Step
from tests.families import FAMILIES
from tests.report.browser import Page, chromium, missing
from tests.report.deep import Deep

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "a browser is here")

SIZES = {2: 0, 4: 1}  # tensor-parallel sizes and their places in the switch


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with chromium() as driver:
        yield driver


@pytest.fixture(scope="module")
def difference() -> autotp.GraphDiff:
    return autotp.diff(FAMILIES["llama"].config(), 4, compare=(2,))


@pytest.fixture(scope="module")
def written(difference: autotp.GraphDiff, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "diff.html"
    difference.html(path)
    return path


@pytest.fixture
def page(driver: Any, written: Path) -> Iterator[Page]:
    page = Page(driver, written)
    yield page
    assert page.errors() == []


def block_steps(difference: autotp.GraphDiff, tp: int) -> tuple[Step, ...]:
    diff = next(diff for diff in difference.diffs if diff.plan.tp == tp)
    return max(diff.units, key=lambda unit: len(unit.instances)).steps


def test_both_graphs_stand_beside_each_other(page: Page) -> None:
    assert page.text("h1") == "LlamaForCausalLM"
    assert page.all("#sizes button[aria-pressed='true']")[0].text == "4"
    assert len(page.all("#tree .unit")) == 3
    assert "model.layers.{0..1}" in page.text("#tree .unit[aria-current='true']")
    before, after = ({n.get_attribute("data-id") for n in page.all(f"#{side} g.node")} for side in ("before", "after"))
    assert before < after
    assert all(page.ask(f"autotp.layout().cards.get('{name}').role") == "collective" for name in after - before)
    both = "[...document.querySelectorAll(`#${side} g.node`)].map((n) => [n.dataset.id, n.getAttribute('transform')])"
    places = [dict(page.ask(f"((side) => {both})('{side}')")) for side in ("before", "after")]
    assert places[0].items() <= places[1].items()  # the same node at the same place


def test_every_node_is_there(page: Page, difference: autotp.GraphDiff) -> None:
    page.choose("details", "all")
    home = page.ask("Object.fromEntries(autotp.layout().home)")
    assert set(home) == {step.name for step in block_steps(difference, 4)}
    operators = [step.name for step in block_steps(difference, 4) if step.role not in ("parameter", "input")]
    assert all(home[name] == name for name in operators)
    assert len(page.all("#after g.node")) >= len(operators)


def test_a_click_shows_shapes_term_and_reason(page: Page) -> None:
    page.click("#after g.node[data-id='linear']")
    panel = page.text("#panel")
    assert page.all("#panel .title")[0].text == "ColumnParallelLinear"
    for words in ("self_attn.q_proj", "column-parallel", "a slice on every rank", "b × s × 64", "b × s × 16"):
        assert words in panel
    assert "an axis of 2, cut in 2: 1 on a rank" in panel
    assert "Linear became ColumnParallelLinear" in panel
    assert len(page.all("g.node.selected")) == 2  # on both sides
    page.click("#panel .close")
    assert "Cut axes" in page.text("#panel")


def test_a_collective_says_who_put_it_there_and_what_it_moves(page: Page) -> None:
    page.click("#after g.node.collective.awake")
    panel = page.text("#panel")
    assert "all-reduce" in panel
    assert "768 KiB a rank" in panel
    assert "is a partial sum, its parts on all 4 ranks" in panel
    assert "4 ranks · 64·b·s elements · on an activation" in panel


def test_search_finds_and_clears(page: Page) -> None:
    page.type("#search", "o_proj")
    assert page.text("#found").endswith("found")
    hits = {node.get_attribute("data-id") for node in page.all("#after g.node.hit")}
    assert "linear_3" in hits
    assert len(page.all("#after g.node.dimmed")) == len(page.all("#after g.node")) - len(hits)
    page.type("#search", "\ue007")  # return
    assert page.text("#found").startswith("1 of")
    assert page.ask("document.getElementById('panel').dataset.shows") in hits
    page.type("#search", "\ue00c")  # escape
    assert not page.all("g.node.hit")
    page.type("#search", "no such node")
    assert page.text("#found") == "none"


def test_the_phase_switches_which_collectives_move_bytes(page: Page) -> None:
    def awake() -> set[str]:
        return {node.get_attribute("data-id") for node in page.all("#after g.node.collective.awake")}

    forward = awake()
    assert forward == {"reduce", "reduce_1"}
    assert page.all("#after g.edge path[marker-end]")
    page.choose("phases", "backward")
    backward = awake()
    assert not forward & backward
    assert {"enter", "enter_1"} <= backward
    assert page.all("#after g.edge path[marker-start]")
    assert not page.all("#after g.edge path[marker-end]")
    assert "backward" in page.text("#after-title")


def test_the_size_switches_shapes_and_numbers(page: Page) -> None:
    page.click("#after g.node[data-id='linear']")
    page.choose("sizes", SIZES[2])
    assert "on each of 2 ranks" in page.text("#after-title")
    assert "b × s × 32" in page.text("#panel")  # what was selected stays so
    assert page.all("#panel .title")[0].text == "ColumnParallelLinear"


def test_units_blocks_axes_and_modules(page: Page) -> None:
    page.click("#panel .axis[data-axis='A']")
    dimmed = len(page.all("#after g.node.dimmed"))
    assert 0 < dimmed < len(page.all("#after g.node"))
    page.click("#tree .module[data-module='mlp']")
    assert page.all("#after g.node.dimmed")
    count = len(page.all("#after g.node"))
    page.click("#after g.node.many")
    page.click("#panel .open")
    assert len(page.all("#after g.node")) > count
    page.click("#panel .open")  # and folded again
    assert len(page.all("#after g.node")) == count
    page.click("#tree .unit[data-unit='2']")
    assert "lm_head" in page.text("#tree .unit[aria-current='true']")
    assert page.all("#after g.node[data-id='gather']")


def test_both_panes_move_together(page: Page) -> None:
    views = "[...document.querySelectorAll('g.view')].map((view) => view.getAttribute('transform'))"
    start = page.ask(views)
    assert start[0] == start[1]
    page.drag("#before svg", 40, 30)
    dragged = page.ask(views)
    assert dragged[0] == dragged[1] != start[0]
    page.wheel("#after svg", -300)
    zoomed = page.ask(views)
    assert zoomed[0] == zoomed[1] != dragged[0]
    page.all("#next")[0].click()
    assert page.text("#which") == "1 of 2"
    page.wait(600)
    assert len(set(page.ask(views))) == 1
    page.all("#after g.node.selected")[0].click()  # it was brought into view, so a mouse reaches it
    assert "all-reduce" in page.text("#panel")


def test_wide_leaves_the_graphs_alone(page: Page) -> None:
    width = page.ask("document.querySelector('#after svg').clientWidth")
    page.all("#wide")[0].click()
    assert not page.all("#tree")[0].is_displayed()
    assert page.ask("document.querySelector('#after svg').clientWidth") > width + 200
    page.click("#after g.node.row")
    assert page.all("#panel")[0].is_displayed()


def test_light_and_dark(page: Page) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    before = page.ask(colour)
    page.all("#theme")[0].click()
    assert page.ask(colour) != before


def test_a_block_of_300_nodes_stays_usable(driver: Any, tmp_path: Path) -> None:
    with torch.device("meta"):
        model, example = Deep(), torch.zeros(2, 3, 64)
    found = autotp.diff(model, 4, example=example)
    found.html(tmp_path / "deep.html")
    assert len(found.diffs[0].units[0].steps) >= 290
    page = Page(driver, tmp_path / "deep.html")
    assert len(page.all("#after g.node")) < 30  # the outline
    page.choose("details", "all")
    assert len(page.all("#after g.node")) > 280
    assert page.ask("autotp.layout().milliseconds") < 10_000  # about one second on a machine that does nothing else
    page.type("#search", "sigmoid_13")
    assert page.text("#found") == "1 found"
    page.choose("phases", "backward")
    assert page.errors() == []


def test_a_model_of_which_nothing_is_cut(driver: Any, tmp_path: Path) -> None:
    autotp.diff(FAMILIES["llama"].config(), 1).html(tmp_path / "one.html")
    page = Page(driver, tmp_path / "one.html")
    assert "runs as it is" in page.text("#message")
    assert page.errors() == []
