"""The learner does one train iteration in each firing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from flowrl.core.batch import Batch, Rows, Schema, as_batch
from flowrl.core.checkpoint import checkpoint_bytes
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import PartSpec, param, part, parts
from flowrl.core.facts import Facts, Surroundings, UnsoundError
from flowrl.core.node import Load, Node
from flowrl.core.ports import In, Out, StateIn, StateOut
from flowrl.core.saved_state import SavedState, check_names
from flowrl.core.state import Clock, Count, State
from flowrl.machine.environment import library_versions
from flowrl.nodes.algorithm import COLUMN_HINTS, Algorithm
from flowrl.nodes.compute import Precision, check_settings, compute_of
from flowrl.nodes.configured_parts import configured_parts
from flowrl.nodes.configured_policies import policy_for_rows
from flowrl.nodes.devices import CPU, device_facts, device_param
from flowrl.nodes.fast_group import NOT_EXACT, FastGroup
from flowrl.nodes.greedy_policy import GreedyPolicy
from flowrl.nodes.groups import ALONE, GraphGroup, Group, check_equal_weights
from flowrl.nodes.learners.hook import Hook
from flowrl.nodes.learners.hooks import AveragedWeights
from flowrl.nodes.learners.mean_metrics import MeanMetrics
from flowrl.nodes.learners.warm_start import (
    FITTING_HINT,
    check_begin,
    load_networks,
    read_learner_state,
)
from flowrl.nodes.models.saved_weights import check_no_nan
from flowrl.nodes.nstep import NstepRule, nstep_rule, with_summed_rewards
from flowrl.nodes.policy import LearnMode, Policy, weights_facts

Reduce = Literal["exact", "fast"]

RESETS = "resets"  # how often a learner has to begin again, or has: in the state that tells it, and in its command

WORTH_THREADS_S = 0.01  # shorter train iterations do not become faster with more threads


class Learner(Node):
    """Trains the policy's learn mode; each train iteration makes a new version of the weights."""

    role = "learner"
    replicas_form_group = True
    data = In("samples")
    found = StateIn(
        "results",
        optional=True,
        about="the newest evaluation, on which the policy's command may depend",
    )
    resets = StateIn(
        "resets",
        optional=True,
        about="from a league: how often the learner of an exploiter has to begin again",
    )
    weights = StateOut("weights")
    averaged = StateOut(
        "weights", optional=True, about="the weights that the hook `averaged_weights` averages"
    )
    priorities = Out(
        "priorities", optional=True, about="the priorities of the rows that were learned from"
    )

    class Config(BaseConfig):
        policy: Any = part("policy", "the policy that learns", shared="policy")
        device: str = device_param("where its networks and batches are")
        precision: Precision = param(
            "float32",
            "bf16: passes through networks are in mixed precision; weights stay in float32",
        )
        compile: bool = param(
            False, "compile the passes through networks, which takes time at the start of a run"
        )
        accumulate: int = param(1, "gradients of which an optimiser step takes the mean", ge=1)
        reduce: Reduce = param(
            "exact",
            "of a group: `exact` adds gradients in the order of the replicas; `fast` lets torch.distributed choose "
            "the order, so that placements differ",
        )
        log_every_iters: int = param(
            100, "train iterations between two reports of mean metrics", ge=1
        )
        begin_with: str | None = param(
            None, "a checkpoint whose learner this one continues", min_length=1, file=True
        )
        only: list[str] | None = param(
            None, "take only the weights of these networks from it; null: everything", min_length=1
        )
        hooks: Any = parts("hook", "what happens before and after train iterations")

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        schema = surroundings.inputs["data"] or {}
        policy = policy_for_rows(config.policy, schema)
        sums = nstep_rule(policy, schema)
        check_begin(config.begin_with, config.only, policy)
        if surroundings.runs_here:
            compute_of(config)  # raises if this machine cannot
        _check_compute(config, policy)
        _check_rows(policy, surroundings)
        if surroundings.group_size > 1:
            _check_group(policy)
        elif config.reduce != "exact":
            what = "`reduce: fast` is for a group of learners, and this learner is alone"
            raise UnsoundError(what, "give it `replicas`, or leave out `reduce`", "reduce")
        _check_hooks(config, surroundings)
        return Facts(
            outs={"priorities": {"priority": policy.priority_column()}},
            rows={"priorities": rows["data"]} if "data" in (rows := surroundings.rows) else {},
            needs={"data": policy.learn_columns()},
            column_hints=COLUMN_HINTS,
            sequences={"data": policy.sequence_settings()},
            **weights_facts(dict.fromkeys(("weights", "averaged"), (policy, "policy"))),
            settings=dict.fromkeys(("weights", "averaged"), frozenset(policy.collect_settings())),
            needs_settings={"found": policy.needed_results()},
            on_policy=policy.on_policy,
            needs_newest_weights=policy.needs_newest_weights,
            nondeterministic=NOT_EXACT if config.reduce == "fast" else "",
            needs_order=frozenset({"data"} if policy.needs_order or sums else ()),
            order_hints={"data": _summing_hint(sums)} if sums and not policy.needs_order else {},
            **device_facts(config, policy, True, surroundings.runs_here),
        )

    @classmethod
    def remedy(cls, config: Any, load: Load) -> str:
        """More threads, if train iterations are long and cores are idle."""
        if config.device != CPU or load.each_s < WORTH_THREADS_S or not load.idle_cores:
            return ""
        idle, threads = load.idle_cores, load.torch_threads + load.idle_cores
        cores = "1 core was" if idle == 1 else f"{idle} cores were"
        return f"{cores} idle: with images or wide layers, try `torch_threads: {threads}` for this node"

    @classmethod
    def trained_policy(
        cls, config: Any, inputs: Mapping[str, Schema | None], weights: State
    ) -> GreedyPolicy:
        """Make the policy that a learner with this config and these inputs trains, to act outside of the run."""
        return GreedyPolicy(policy_for_rows(config.policy, inputs.get("data") or {}), weights)

    def setup(self) -> None:
        schema = self.ctx.inputs.get("data") or {}
        self.policy = policy_for_rows(self.config.policy, schema)
        # By hand, batches are those of a buffer, which has summed their rewards.
        self._rule = nstep_rule(self.policy, schema) if schema else None
        _check_compute(self.config, self.policy)
        self._group: Group = ALONE
        if self.ctx.group is not None:
            self._group = GraphGroup(self.ctx.group)
            if self.config.reduce == "fast":
                self._group = FastGroup(self.ctx.group, self.ctx.report_irregularity)
        self.mode = self._make_mode(self.ctx.seed_for("learn"))
        hooks: list[Hook] = configured_parts(self.config, "hooks", Hook)
        self.hooks = sorted(hooks, key=lambda hook: hook.config.priority)
        for hook in hooks:
            hook.check_state()
            hook.check_methods()
        self.train_iter = 0
        self._is_uncounted = False  # whether the clock lacks the last train iteration
        self._is_running = False  # whether the hooks know that the run has begun
        self._metrics = MeanMetrics(self._group)
        self._earlier = Count()  # the progress before this run
        self._found: dict[str, float] = {}  # the metrics of the newest evaluation
        self._resets = 0  # how often it has begun again
        if self.config.begin_with is not None:
            self._begin_with(Path(self.config.begin_with))
            self._resets = 0  # those of the checkpoint's run do not count

    def fire(
        self, data: Batch, found: State | None = None, resets: State | None = None
    ) -> Batch | None:
        """Do one train iteration; return the priorities of its rows, if the policy has any.

        If the rows come without a buffer that sums their rewards (`nstep`), windows of rewards end with the token.
        """
        if resets is not None and resets.command[RESETS] > self._resets:
            self._reset(int(resets.command[RESETS]))
        try:
            return self._learn(data, found)
        except BaseException:
            self._group.close()  # others may wait for it
            raise

    def _learn(self, data: Batch, found: State | None) -> Batch | None:
        if found is not None and found.command:
            self._found = dict(found.command)
        if self._rule is not None:
            data = with_summed_rewards(data, self._rule)
        if not self._is_running:
            self._is_running = True
            for hook in self.hooks:
                hook.before_run(self)
        for hook in self.hooks:
            hook.before_iter(self, data)
        result = self.mode.forward(data, self.command)
        self.train_iter += 1
        self._is_uncounted = True  # the caller counts it, after the firing
        self.add_metrics(result.metrics)
        if "reward" in data:
            self.add_metrics({"learned_reward_mean": data["reward"].mean()})
        for hook in self.hooks:
            hook.after_iter(self, data, result)
        if self.train_iter % self.config.log_every_iters == 0:
            self._report()
        self._is_uncounted = False
        if result.priorities is None:
            return None
        return Batch({"priority": np.asarray(result.priorities, np.float32)})

    def _reset(self, resets: int) -> None:
        """Learn from the first weights again. Train iterations and schedules count on."""
        self._resets = resets
        self.mode = self._make_mode(self.ctx.seed_for("learn"))
        if self.config.begin_with is not None:
            state = read_learner_state(Path(self.config.begin_with), self.ctx.name)["mode"]
            if self.config.only is None:
                self.mode.load_state_dict(state)
            else:
                load_networks(self.mode, state, self.config.only)
        self.ctx.log(
            f"begins again with its first weights after {self.train_iter} train iterations"
        )

    @property
    def progress(self) -> Count:
        """The progress that schedules depend on, that before a continued run included."""
        return Count(*map(sum, zip(self._earlier, self._clock.total, strict=True)))

    @property
    def command(self) -> dict[str, float]:
        """The policy's settings for the progress so far and the newest evaluation; and how often it has begun again."""
        found = self.policy.command(self.progress, self._found)
        return {**found, RESETS: float(self._resets)} if self._resets else found

    @property
    def _clock(self) -> Clock:
        """The clock of the newest weights."""
        clock = self.ctx.clock
        return clock.add(self.ctx.counted_as, train_iters=1) if self._is_uncounted else clock

    def state(self, port: str = "weights") -> State:
        """The current weights, with the command for the progress so far."""
        weights = self.mode.weights() if port == "weights" else self._averaged_weights()
        return State(weights, self.command)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next train iteration depends on."""
        return {
            "mode": self.mode.state_dict(),
            "train_iter": self.train_iter,
            "progress": list(self.progress),
            "found": dict(self._found),
            "metrics": self._metrics.state_dict(),
            "hooks": {name: hook.state_dict() for name, hook in self._named_hooks().items()},
            **({RESETS: self._resets} if self._resets else {}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state. Hooks that it does not know begin anew, and those that only it has are left out."""
        names = {"mode", "train_iter", "progress", "found", "metrics", "hooks"}
        check_names(self.ctx.key, {n: v for n, v in state.items() if n != RESETS}, names)
        self._resets = int(state.get(RESETS, 0))
        self.mode.load_state_dict(state["mode"])
        self.train_iter = int(state["train_iter"])
        now = self._clock.total
        self._earlier = Count(*(int(n) - m for n, m in zip(state["progress"], now, strict=True)))
        self._found = dict(state["found"])
        self._metrics.load_state_dict(state["metrics"])
        for name, hook in self._named_hooks().items():
            if name in state["hooks"]:
                hook.load_state_dict(state["hooks"][name])

    def close(self) -> None:
        self._group.close()
        if self._is_running:
            self._is_running = False
            for hook in self.hooks:
                hook.after_run(self)

    # for hooks

    def add_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Add to the metrics whose means the next report has: floats, or tensors of one number.

        In a group, each learner adds those of its rows, and the report has their mean over all rows.
        """
        self._metrics.add(metrics)

    def save_as(self, name: str, replaces: str = "") -> None:
        """Save a checkpoint of this name in the run's folder; remove the one that it replaces, if there is one."""
        self.ctx.save_checkpoint(name, self._whole_state(), replaces=replaces)

    # by hand

    def train(
        self, batch: Batch | Rows, env_steps: int = 0, found: State | None = None
    ) -> Batch | None:
        """By hand: do one train iteration, after `env_steps` more env steps; return its priorities, if any.

        `found` is the newest evaluation, `evaluator.state("found")`, for policies whose settings depend on it.
        """
        where, needed = f"{self.ctx.key}.train", self.policy.learn_columns()
        data = as_batch(where, batch)
        missing = [name for name in needed if name not in data]
        if missing:
            raise ValueError(
                f"{where}: the batch lacks the columns {', '.join(missing)}; "
                f"{type(self.policy).__name__} learns from {', '.join(needed)}"
            )
        priorities = self.fire(data, found)
        self.ctx.clock = self.ctx.clock.add(self.ctx.key, env_steps=env_steps, train_iters=1)
        return priorities

    def start(self, buffer: SampleSource, iters: int) -> None:
        """By hand: do so many train iterations on batches that `buffer.sample()` returns.

        A buffer with priorities has a method `update`, and is told those of each batch.
        """
        for _ in range(iters):
            priorities = self.train(buffer.sample())
            if priorities is not None and hasattr(buffer, "update"):
                buffer.update(priorities["priority"])

    def save(self, path: str | Path) -> None:
        """By hand: write a checkpoint to a file."""
        facts = {"libraries": library_versions()}
        content = checkpoint_bytes({f"{self.ctx.key}.weights": self._whole_state()}, {}, facts)
        Path(path).write_bytes(content)

    def load(self, path: str | Path) -> None:
        """By hand: continue from a checkpoint."""
        self._continue_from(Path(path))

    # the parts of it

    def _make_mode(self, seed: int) -> LearnMode:
        if isinstance(self.policy, Algorithm):
            return self.policy.learn_mode(seed, compute_of(self.config, self._group))
        return self.policy.learn_mode(seed)

    def _whole_state(self) -> State:
        weights = self.state()
        saved = SavedState.of(self.state_dict())
        clock = self._clock
        version = clock.counts.get(self.ctx.counted_as, Count()).train_iters
        return State(weights.arrays, weights.command, version, clock, saved)

    def _begin_with(self, path: Path) -> None:
        only = self.config.only
        if only is None:
            self._continue_from(path)
            return
        state = read_learner_state(path, self.ctx.name)
        left_out = load_networks(self.mode, state["mode"], only)
        self.ctx.log(f"begins with {', '.join(only)} of {path}")
        for line in left_out:
            self.ctx.log(f"left out: {line}")

    def _continue_from(self, path: Path) -> None:
        try:
            self.load_state_dict(read_learner_state(path, self.ctx.name))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            if isinstance(error, UnsoundError):
                raise
            what = f"'{path}' does not fit the policy: {error}"
            raise UnsoundError(what, FITTING_HINT, "begin_with") from error
        self.ctx.log(f"continues {path} after {self.train_iter} train iterations")

    def _named_hooks(self) -> dict[str, Hook]:
        """The hooks by name: that of their class, with a number from the second of a class on."""
        found: dict[str, Hook] = {}
        for hook in self.hooks:
            name = type(hook).__name__
            same = sum(other.partition("#")[0] == name for other in found)
            found[f"{name}#{same + 1}" if same else name] = hook
        return found

    def _averaged_weights(self) -> dict[str, Any]:
        return next(h for h in self.hooks if isinstance(h, AveragedWeights)).averaged(self)

    def _report(self) -> None:
        weights = self.mode.weights()
        if self.ctx.group is not None:
            check_equal_weights(self.ctx.group, self.train_iter, self._metrics.names, weights)
        self.ctx.metrics(self._metrics.take_means())
        check_no_nan(weights)


class SampleSource(Protocol):
    """A buffer, as `Learner.start` uses it."""

    def sample(self) -> Any:
        """Return the rows of one train iteration."""


def _check_compute(config: Any, policy: Policy) -> None:
    """Refuse settings of how to compute that the policy does not take."""
    refused = policy.refused_settings if isinstance(policy, Algorithm) else None
    check_settings(config, type(policy).__name__, refused)


def _check_rows(policy: Policy, surroundings: Surroundings) -> None:
    """Refuse tokens of too few rows to learn from."""
    rows, least = surroundings.rows.get("data"), policy.least_rows
    if rows is not None and rows * surroundings.group_size < least:
        what = f"{type(policy).__name__.lower()} learns from {least} rows at least, and a token has {rows}"
        hint = "give it more rows (`n_sample` of a collector, `batch_size` of a buffer); hundreds are usual"
        raise UnsoundError(what, hint)


def _check_group(policy: Policy) -> None:
    """Refuse a group of learners if the policy cannot learn in one."""
    if not isinstance(policy, Algorithm):
        what = f"{type(policy).__name__} cannot learn in a group of learners, because it is no `Algorithm`"
        raise UnsoundError(what, "give the learner one replica", "policy")
    if policy.refuses_groups:
        what = f"a group of learners cannot learn: {policy.refuses_groups}"
        raise UnsoundError(what, "give the learner one replica", "policy")


def _summing_hint(rule: NstepRule) -> str:
    """How to mend it if rows with single rewards come in any order, and the policy learns from sums."""
    return (
        f"the policy sums {rule.nstep} rewards (`nstep`), and these rows have single ones, which must be summed before "
        "their order is lost: give {source} the policy of this learner, such as "
        f"`policy: {{nstep: {rule.nstep}}}`"
    )


def _check_hooks(config: Any, surroundings: Surroundings) -> None:
    """Refuse hooks that share what only one can have, and averaged weights without a hook or without a reader."""
    classes: list[Any] = [
        one.cls if isinstance(one, PartSpec) else type(one) for one in config.hooks
    ]
    for hook_class in classes:
        hook_class.check_methods()
    averages = [k for k, cls in enumerate(classes) if issubclass(cls, AveragedWeights)]
    is_read = "averaged" in surroundings.connected_outputs
    if is_read and not averages:
        what = "the output `averaged` is connected, and no hook averages weights"
        raise UnsoundError(what, "add `hooks: [averaged_weights]`", "hooks")
    if averages and not is_read:
        what = "the hook averaged_weights has no effect: nothing reads the output `averaged`"
        hint = "leave it out, or connect the output, as in `learner.averaged -> evaluator: {every: 96}`"
        raise UnsoundError(what, hint, f"hooks[{averages[0]}]")
    owners: dict[str, int] = {}
    for k, (hook, cls) in enumerate(zip(config.hooks, classes, strict=True)):
        claimed = cls.claims(hook.config)
        if claimed and owners.setdefault(claimed, k) != k:
            what = f"the hooks {owners[claimed] + 1} and {k + 1} of the list both have {claimed}"
            hint = "leave one of them out, or give them different settings for it if it has one"
            raise UnsoundError(what, hint, f"hooks[{k}]")
