"""setup.cfg agrees with the tree, and no file of the repository depends on one machine."""

import configparser
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from flowrl.version import VERSION

ROOT = Path(__file__).parents[1]
FOLDERS = {
    "flowrl": "flowrl",
    "flowrl.nodes": "nodes",
    "flowrl.graphs": "graphs",
    "flowrl.docs": "docs",
}


def setup() -> configparser.ConfigParser:
    found = configparser.ConfigParser()
    found.read(ROOT / "setup.cfg", encoding="utf-8")
    return found


def listed(option: str, section: str = "options") -> list[str]:
    return setup()[section][option].split()


def packages() -> dict[str, Path]:
    """The packages of the tree, with their folders."""
    found = {}
    for package, folder in FOLDERS.items():
        for path in (ROOT / folder).rglob("__init__.py"):
            found[".".join((package, *path.parent.relative_to(ROOT / folder).parts))] = path.parent
    return found


def data() -> set[Path]:
    """The files that package_data names."""
    folders = packages()
    return {
        path
        for package, patterns in setup()["options.package_data"].items()
        for pattern in patterns.split(",")
        for path in folders[package].glob(pattern.strip())
    }


def test_the_list_of_packages_is_that_of_the_tree() -> None:
    assert listed("packages") == sorted(packages())


def test_every_file_is_a_module_of_a_package_or_named_as_its_data() -> None:
    modules = {path for folder in packages().values() for path in folder.glob("*.py")}
    for folder in FOLDERS.values():
        files = {
            p for p in (ROOT / folder).rglob("*") if p.is_file() and p.parent.name != "__pycache__"
        }
        assert files - modules - data() == set()


def test_every_folder_of_tests_is_a_package() -> None:
    folders = {path.parent for path in (ROOT / "tests").rglob("*.py")}
    assert {folder for folder in folders if not (folder / "__init__.py").is_file()} == set()


def test_the_folders_are_mapped_as_the_tests_assume() -> None:
    mapped = dict(
        re.split(r"\s*=\s*", line)
        for line in setup()["options"]["package_dir"].strip().splitlines()
    )
    assert mapped == FOLDERS


def tracked() -> list[Path]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in done.stdout.decode().split("\0") if name]


def test_no_file_names_a_place_on_one_machine() -> None:
    place = re.compile(rb"/(?:home|root|Users|work)/[\w.]+")
    found = [
        f"{path.relative_to(ROOT)}: {match[0].decode()}"
        for path in tracked()
        if path.is_file() and path.suffix in (".py", ".yaml", ".cfg", ".toml", ".txt", "")
        for match in place.finditer(path.read_bytes())
        if path.name != Path(__file__).name
    ]
    assert found == []


def test_the_package_declares_its_types() -> None:
    assert ROOT / "flowrl" / "py.typed" in data()


def test_the_citation_names_this_version_and_licence() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == VERSION
    assert citation["license"] == setup()["metadata"]["license"]
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()


@pytest.mark.parametrize("name", ["mistake", "idea"])
def test_the_forms_for_issues_can_be_read(name: str) -> None:
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text())
    assert {"name", "description", "body"} <= form.keys()
    assert all(field["attributes"]["label"] for field in form["body"])


def test_the_extras_that_the_pages_name_exist() -> None:
    """Also those in errors: `pip install 'flowrl[video]'`."""
    extras = set(setup()["options.extras_require"])
    named = {
        extra
        for path in tracked()
        if path.suffix in (".md", ".py", ".yaml") and path.is_file()
        for found in re.findall(
            r"pip install '(?:flowrl|\.)\[([a-z0-9,]+)\]'", path.read_text("utf-8")
        )
        for extra in found.split(",")
    }
    assert {"video", "atari"} <= named
    assert named <= extras


METADATA = (
    "setup.cfg",
    "CITATION.cff",
    ".github/ISSUE_TEMPLATE",
    ".github/pull_request_template.md",
)


@pytest.mark.parametrize("name", METADATA)
def test_no_file_of_metadata_invents_an_address(name: str) -> None:
    """The project is not published yet (CONTRIBUTING.md): an address would be that of nobody, or of somebody else."""
    path = ROOT / name
    files = [path] if path.is_file() else sorted(path.glob("*.yml"))
    assert files
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert (
            re.findall(r"https?://\S+|\b[\w.]+@[\w.]+\b|^\s*(?:project_)?urls? *[=:].*", text, re.M)
            == []
        )
