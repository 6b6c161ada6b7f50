"""Whole loaders on the same data and the same work, epoch by epoch in turn.

    python benchmarks/run.py [--works train,eval] [--rounds 5] [--workers 2] [--only feedline,torch]

Prints a table for each work and a verdict for each bar, keeps the record with its plot in
benchmarks/runs/, and fails if a bar is missed. Machines drift by more than loaders differ, so only
ratios within one run mean anything.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import photos
from bars import judge
from contest import Contestant, compete, drop_page_cache, reason
from report import disturbance, replace_block, summary, table
from rivals import Missing, environment, limit_program, versions
from works import DEFAULT, LOADERS, WORKS, Work

HERE = Path(__file__).resolve().parent
README = HERE.parent / "README.md"
#: The part of the machine that others may take: the observers themselves need 1 to 2 %.
QUIET = 0.05


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def machine() -> dict[str, Any]:
    model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": model[0].split(":")[1].strip() if model else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": memory,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


class Benchmark:
    """What the contests of one run share."""

    def __init__(self, rounds: int, workers: int, only: list[str]) -> None:
        self.rounds = rounds
        self.workers = workers
        self.only = only
        self.made = photos.ensure()
        self.scratch = self.made.with_name(self.made.name.replace("photos-", "prepared-"))
        self.scratch.mkdir(exist_ok=True)
        self.versions: dict[str, str] = {}
        self.commands: dict[str, str] = {}
        #: By environment: its Python, or why there is none.
        self.pythons: dict[str, Path | Missing] = {}

    def python(self, name: str) -> Path:
        if name not in self.pythons:
            try:
                # feedline runs where this does: it needs the wheel that is on the path.
                path = Path(sys.prefix) if name == "build" else environment(name)
                self.pythons[name] = path / "bin" / "python"
            except Missing as missing:
                say(f"{name} did not install: {missing}")
                self.pythons[name] = Missing(f"did not install: {missing}")
        found = self.pythons[name]
        if isinstance(found, Missing):
            raise found
        return found

    def data(self, work: Work) -> Path:
        if work.data == "arrays":
            return self.scratch
        if work.data != "sample":
            return self.made / work.data
        # Made anew by the version under test: it is deterministic and takes a few seconds.
        folder = self.scratch / "sample"
        if not folder.exists():
            command = [sys.executable, "-m", "feedline", "sample-data", str(folder)]
            subprocess.run(command, check=True, stdout=sys.stderr)
        return folder

    def command(self, name: str, work_name: str) -> tuple[list[str], dict[str, str]]:
        """How a loader is started, and with which environment variables."""
        loader, work = LOADERS[name], WORKS[work_name]
        workers = str(loader.workers or self.workers)
        variables = dict(os.environ)
        if loader.environment is None:
            return [str(limit_program()), str(self.data(work)), workers, loader.variant], variables
        python = self.python(loader.environment)
        if loader.environment != "build":
            # Its own packages only.
            variables.pop("PYTHONPATH", None)
        if loader.packages:
            ask = [package for package in loader.packages if package not in self.versions]
            self.versions |= versions(python, ask) if ask else {}
        script = HERE / "loaders" / f"{loader.script}.py"
        task = [work_name, str(self.data(work)), str(self.scratch), workers]
        return [str(python), str(script), *task, *([loader.variant] if loader.variant else [])], variables

    def start(self, name: str, work_name: str, logs: Path) -> Contestant:
        command, variables = self.command(name, work_name)
        if LOADERS[name].environment is not None:
            log = logs / f"{name}-prepare.txt"
            with log.open("w") as complaints:
                done = subprocess.run(
                    [*command, "--prepare"], env=variables, stdout=complaints, stderr=complaints
                )
            if done.returncode != 0:
                raise Missing(f"did not prepare its data: {reason(log.read_text(errors='replace'))}")
        shown = " ".join(command).replace(f"{HERE.parent}/", "").replace(str(Path.home()), "~")
        self.commands[f"{work_name}: {name}"] = shown
        return Contestant(name, command, variables, logs / f"{name}.txt")

    def contest(self, work_name: str) -> dict[str, Any]:
        """Runs one work to its end."""
        work = WORKS[work_name]
        say(f"\n{work_name}: {work.title}")
        results: dict[str, Any] = {}
        contestants: list[Contestant] = []
        with tempfile.TemporaryDirectory() as logs:
            try:
                for name in [name for name in work.loaders if not self.only or name in self.only]:
                    try:
                        contestants.append(self.start(name, work_name, Path(logs)))
                        results[name] = {}
                    except Missing as missing:
                        say(f"{name}: {missing}")
                        results[name] = {"failure": str(missing)}
                cache = "warm"
                if work.data != "arrays" and not work.cold:
                    # Times to the first batch are taken in the first epoch.
                    for path in self.data(work).rglob("*.jpg"):
                        path.read_bytes()

                def before() -> None:
                    nonlocal cache
                    if work.cold:
                        cache = drop_page_cache([self.data(work), self.scratch])

                failures = compete(contestants, self.rounds, before, say)
            finally:
                for one in contestants:
                    one.end()
        for one in contestants:
            if one.name in failures:
                results[one.name] = {"failure": f"did not run: {failures[one.name]}"}
            else:
                results[one.name] = {"epochs": one.epochs, "peak_pss": one.peak}
        return {"title": work.title, "workers": self.workers, "page_cache": cache, "loaders": results}

    def starts(self) -> dict[str, float]:
        """What benchmarks/start.py measures, each in fresh processes."""
        say("\nstart: the first batch, and a manifest of 1,000,000 files")

        def measure(what: str) -> dict[str, float]:
            command = [sys.executable, str(HERE / "start.py"), what, str(self.made / "standard")]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            figures: dict[str, float] = json.loads(done.stdout)
            return figures

        figures = [{**measure("first"), **measure("manifest")} for _ in range(max(3, self.rounds))]
        return {key: statistics.median(figure[key] for figure in figures) for key in figures[0]}


def choose(given: str, known: Iterable[str]) -> list[str]:
    chosen = [name for name in given.split(",") if name]
    unknown = [name for name in chosen if name not in known]
    if unknown:
        sys.exit(f"no such name: {', '.join(unknown)}; there are {', '.join(known)}")
    return chosen


def write_readme(record: dict[str, Any], verdict_count: str, kept: Path) -> None:
    named = ", ".join(f"{name} {version}" for name, version in sorted(record["versions"].items()))
    place = f"{record['machine']['cpu']}, {record['machine']['cores']} cores"
    sizes = {kind: f"{made['mean_bytes'] / 1e3:.0f} kB" for kind, made in record["photos"].items()}
    data = (
        f"4,000 photographs of about 500x375 ({sizes['standard']}): RandomResizedCrop(224), flip, normalise "
        "to float32, batch 64. eval: Resize(256), CenterCrop(224). Large photos: about 1896x1606 "
        f"({sizes['large']}). Small arrays: 3x32x32. Packed pixels: kept decoded at shorter side 256."
    )
    how = (
        f"{record['workers']} workers, warm page cache, median of {record['rounds']} alternating epochs; in "
        f"brackets the ratio to torch. {place}. {named}. {verdict_count}"
    )
    more = (
        f"An asterisk: does less, or otherwise. How, the limits and the raw data: [{kept.stem}]"
        f"({kept.with_suffix('.md').relative_to(README.parent)}); again: `make bench`."
    )
    note = " ".join([data, how, more])
    README.write_text(replace_block(README.read_text(), [*summary(record["works"]), "", note]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--works", default=",".join(DEFAULT), help=f"of {', '.join(WORKS)}, start")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", default="", help="only these loaders")
    parser.add_argument("--update-readme", action="store_true")
    parser.add_argument("--into", type=Path, default=HERE / "runs")
    options = parser.parse_args()
    works = choose(options.works or ",".join(DEFAULT), [*WORKS, "start"])
    only = choose(options.only, LOADERS)
    full = set(works) >= set(DEFAULT) and not only
    if full and "start" not in works:
        works.append("start")

    began = time.monotonic()
    benchmark = Benchmark(options.rounds, options.workers, only)
    results = {name: benchmark.starts() if name == "start" else benchmark.contest(name) for name in works}

    contests = {name: result for name, result in results.items() if name != "start"}
    tables = {name: table(name, result) for name, result in contests.items()}
    # The best of a few is not the best rival.
    verdicts = [] if only else judge(results)
    text = []
    for name, rows in tables.items():
        text += [f"## {WORKS[name].title}", "", *rows, ""]
    text += ["## Bars", "", "```", *map(str, verdicts), "```"]
    others = disturbance(contests)
    if others > QUIET:
        warning = f"The machine was not quiet: others took {others:.0%} of it. Do not trust these figures."
        text = [warning, "", *text]
    print("\n".join(text))

    now = datetime.datetime.now(datetime.timezone.utc)
    record = {
        "when": now.isoformat(timespec="seconds"),
        "command": " ".join(["python", "benchmarks/run.py", *sys.argv[1:]]),
        "others": round(others, 3),
        "minutes": round((time.monotonic() - began) / 60, 1),
        "machine": machine(),
        "rounds": options.rounds,
        "workers": options.workers,
        "versions": benchmark.versions,
        "photos": json.loads((benchmark.made / "made.json").read_text()),
        "commands": benchmark.commands,
        "works": contests,
        "start": results.get("start"),
        "bars": [{"title": one.bar.title, "value": one.value, "met": one.met} for one in verdicts],
    }
    options.into.mkdir(parents=True, exist_ok=True)
    # A part of a run does not take the place of a whole one, nor is it kept in the repository.
    kept = options.into / (f"{now:%Y-%m-%d}" + ("" if full else f"-part-{'-'.join(works)}") + ".json")
    kept.write_text(json.dumps(record, indent=1) + "\n")
    place = f"{record['machine']['cpu']}, {record['machine']['cores']} cores, {record['machine']['system']}"
    named = ", ".join(f"{name} {version}" for name, version in sorted(benchmark.versions.items()))
    head = [f"# {now:%Y-%m-%d}: {place}", "", f"`{record['command']}`", "", named, ""]
    if contests:
        head += [f"![images/s of each loader]({kept.with_suffix('.svg').name})", ""]
    kept.with_suffix(".md").write_text("\n".join([*head, *text]) + "\n")
    if contests:
        python = environment("plot") / "bin" / "python"
        subprocess.run([str(python), str(HERE / "plot.py"), str(kept)], check=True)
    missed = [one for one in verdicts if not one.met]
    if options.update_readme and full:
        write_readme(record, f"{len(verdicts) - len(missed)} of {len(verdicts)} bars are met.", kept)
    also = "also .md, .svg, .png" if contests else "also .md"
    say(f"\n{kept} ({also}), {record['minutes']} minutes, {len(missed)} bars missed")
    return 1 if missed else 0


if __name__ == "__main__":
    if shutil.which("cargo") is None:
        sys.exit("cargo is missing: run `make bench`")
    sys.exit(main())
