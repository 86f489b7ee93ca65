"""The node library: environments, policies, models, collectors, buffers, reward models, learners, evaluators.

Every class in the catalogue, the base classes of policies and wrappers, and `GreedyPolicy` can be imported from this
package by its name. Its module is imported at the first access.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from flowrl.core.errors import spelling_hint

if TYPE_CHECKING:  # for type checkers and editors; at run time the catalogue says what there is
    from flowrl.nodes.buffers.advanced_replay_buffer import (
        AdvancedReplayBuffer as AdvancedReplayBuffer,
    )
    from flowrl.nodes.buffers.episode_replay_buffer import (
        EpisodeReplayBuffer as EpisodeReplayBuffer,
    )
    from flowrl.nodes.buffers.naive_replay_buffer import NaiveReplayBuffer as NaiveReplayBuffer
    from flowrl.nodes.buffers.queue_buffer import QueueBuffer as QueueBuffer
    from flowrl.nodes.buffers.row_splitter import RowSplitter as RowSplitter
    from flowrl.nodes.buffers.sequence_replay_buffer import (
        SequenceReplayBuffer as SequenceReplayBuffer,
    )
    from flowrl.nodes.buffers.storage.compressed import CompressedStorage as CompressedStorage
    from flowrl.nodes.buffers.storage.mapped import MappedStorage as MappedStorage
    from flowrl.nodes.buffers.storage.storage import MemoryStorage as MemoryStorage
    from flowrl.nodes.buffers.transforms.her import Her as Her
    from flowrl.nodes.collectors.episode_collector import EpisodeCollector as EpisodeCollector
    from flowrl.nodes.collectors.group_collector import GroupCollector as GroupCollector
    from flowrl.nodes.collectors.match_collector import MatchCollector as MatchCollector
    from flowrl.nodes.collectors.sample_collector import SampleCollector as SampleCollector
    from flowrl.nodes.datasets.dataset_reader import DatasetReader as DatasetReader
    from flowrl.nodes.datasets.dataset_writer import DatasetWriter as DatasetWriter
    from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager as SerialEnvManager
    from flowrl.nodes.env_managers.subprocess_env_managers import (
        AsyncSubprocessEnvManager as AsyncSubprocessEnvManager,
    )
    from flowrl.nodes.env_managers.subprocess_env_managers import (
        SyncSubprocessEnvManager as SyncSubprocessEnvManager,
    )
    from flowrl.nodes.env_managers.thread_env_manager import ThreadEnvManager as ThreadEnvManager
    from flowrl.nodes.env_managers.vector_env_manager import EnvPoolEnvManager as EnvPoolEnvManager
    from flowrl.nodes.env_managers.vector_env_manager import VectorEnvManager as VectorEnvManager
    from flowrl.nodes.envs.gymnasium import Gymnasium as Gymnasium
    from flowrl.nodes.envs.legacy_gym import LegacyGym as LegacyGym
    from flowrl.nodes.envs.open_spiel import OpenSpiel as OpenSpiel
    from flowrl.nodes.envs.pettingzoo import PettingZoo as PettingZoo
    from flowrl.nodes.envs.tuple_agents import TupleAgents as TupleAgents
    from flowrl.nodes.envs.wrappers.actions import ActionRepeat as ActionRepeat
    from flowrl.nodes.envs.wrappers.actions import ActionScale as ActionScale
    from flowrl.nodes.envs.wrappers.actions import StickyActions as StickyActions
    from flowrl.nodes.envs.wrappers.episodes import EpisodicLife as EpisodicLife
    from flowrl.nodes.envs.wrappers.episodes import FireOnReset as FireOnReset
    from flowrl.nodes.envs.wrappers.episodes import NoopStart as NoopStart
    from flowrl.nodes.envs.wrappers.episodes import TimeLimit as TimeLimit
    from flowrl.nodes.envs.wrappers.frame_stack import FrameStack as FrameStack
    from flowrl.nodes.envs.wrappers.images import Gray as Gray
    from flowrl.nodes.envs.wrappers.images import Resize as Resize
    from flowrl.nodes.envs.wrappers.leaves import ActionMask as ActionMask
    from flowrl.nodes.envs.wrappers.leaves import Previous as Previous
    from flowrl.nodes.envs.wrappers.rewards import RewardClip as RewardClip
    from flowrl.nodes.envs.wrappers.rewards import RewardGoal as RewardGoal
    from flowrl.nodes.envs.wrappers.rewards import RewardNormalise as RewardNormalise
    from flowrl.nodes.envs.wrappers.select import Select as Select
    from flowrl.nodes.envs.wrappers.wrapper import ImportedWrapper as ImportedWrapper
    from flowrl.nodes.envs.wrappers.wrapper import Wrapper as Wrapper
    from flowrl.nodes.evaluators.evaluator import Evaluator as Evaluator
    from flowrl.nodes.evaluators.group_evaluator import GroupEvaluator as GroupEvaluator
    from flowrl.nodes.evaluators.match_evaluator import MatchEvaluator as MatchEvaluator
    from flowrl.nodes.exploring import ActionNoise as ActionNoise
    from flowrl.nodes.exploring import EpsilonLadder as EpsilonLadder
    from flowrl.nodes.exploring import OuNoise as OuNoise
    from flowrl.nodes.exploring import RandomActions as RandomActions
    from flowrl.nodes.greedy_policy import GreedyPolicy as GreedyPolicy
    from flowrl.nodes.labels.expert_labels import ExpertLabels as ExpertLabels
    from flowrl.nodes.labels.return_weights import ReturnWeights as ReturnWeights
    from flowrl.nodes.league.league import League as League
    from flowrl.nodes.learners.hooks import AveragedWeights as AveragedWeights
    from flowrl.nodes.learners.hooks import GradientStatistics as GradientStatistics
    from flowrl.nodes.learners.hooks import NanGuard as NanGuard
    from flowrl.nodes.learners.hooks import Save as Save
    from flowrl.nodes.learners.learner import Learner as Learner
    from flowrl.nodes.models.chosen import Auto as Auto
    from flowrl.nodes.models.chosen import Layers as Layers
    from flowrl.nodes.models.cnn import Cnn as Cnn
    from flowrl.nodes.models.layers import BatchNormLayer as BatchNormLayer
    from flowrl.nodes.models.layers import ConvLayer as ConvLayer
    from flowrl.nodes.models.layers import DenseLayer as DenseLayer
    from flowrl.nodes.models.layers import FlattenLayer as FlattenLayer
    from flowrl.nodes.models.layers import GruLayer as GruLayer
    from flowrl.nodes.models.layers import LstmLayer as LstmLayer
    from flowrl.nodes.models.mlp import Mlp as Mlp
    from flowrl.nodes.models.model import ModuleModel as ModuleModel
    from flowrl.nodes.models.optimisers import Adam as Adam
    from flowrl.nodes.models.optimisers import Adamw as Adamw
    from flowrl.nodes.models.optimisers import Rmsprop as Rmsprop
    from flowrl.nodes.models.optimisers import Sgd as Sgd
    from flowrl.nodes.models.recurrent import Gru as Gru
    from flowrl.nodes.models.recurrent import Lstm as Lstm
    from flowrl.nodes.policies.a2c import A2c as A2c
    from flowrl.nodes.policies.acer import Acer as Acer
    from flowrl.nodes.policies.atoc import Atoc as Atoc
    from flowrl.nodes.policies.awac import Awac as Awac
    from flowrl.nodes.policies.bc import Bc as Bc
    from flowrl.nodes.policies.c51 import C51 as C51
    from flowrl.nodes.policies.collaq import Collaq as Collaq
    from flowrl.nodes.policies.coma import Coma as Coma
    from flowrl.nodes.policies.cql import Cql as Cql
    from flowrl.nodes.policies.crossq import Crossq as Crossq
    from flowrl.nodes.policies.d4pg import D4pg as D4pg
    from flowrl.nodes.policies.ddpg import Ddpg as Ddpg
    from flowrl.nodes.policies.discrete_cql import DiscreteCql as DiscreteCql
    from flowrl.nodes.policies.discrete_sac import DiscreteSac as DiscreteSac
    from flowrl.nodes.policies.distillation import Distillation as Distillation
    from flowrl.nodes.policies.dqfd import Dqfd as Dqfd
    from flowrl.nodes.policies.dqn import Dqn as Dqn
    from flowrl.nodes.policies.expert import Expert as Expert
    from flowrl.nodes.policies.fqf import Fqf as Fqf
    from flowrl.nodes.policies.happo import Happo as Happo
    from flowrl.nodes.policies.impala import Impala as Impala
    from flowrl.nodes.policies.iql import Iql as Iql
    from flowrl.nodes.policies.iqn import Iqn as Iqn
    from flowrl.nodes.policies.maddpg import Maddpg as Maddpg
    from flowrl.nodes.policies.mappo import Mappo as Mappo
    from flowrl.nodes.policies.masac import Masac as Masac
    from flowrl.nodes.policies.mdqn import Mdqn as Mdqn
    from flowrl.nodes.policies.ppg import Ppg as Ppg
    from flowrl.nodes.policies.ppo import Ppo as Ppo
    from flowrl.nodes.policies.pqn import Pqn as Pqn
    from flowrl.nodes.policies.qmix import Qmix as Qmix
    from flowrl.nodes.policies.qplex import Qplex as Qplex
    from flowrl.nodes.policies.qrdqn import Qrdqn as Qrdqn
    from flowrl.nodes.policies.r2d2 import R2d2 as R2d2
    from flowrl.nodes.policies.rainbow import Rainbow as Rainbow
    from flowrl.nodes.policies.random import Random as Random
    from flowrl.nodes.policies.redq import Redq as Redq
    from flowrl.nodes.policies.reinforce import Reinforce as Reinforce
    from flowrl.nodes.policies.sac import Sac as Sac
    from flowrl.nodes.policies.sql import Sql as Sql
    from flowrl.nodes.policies.td3 import Td3 as Td3
    from flowrl.nodes.policies.td3bc import Td3bc as Td3bc
    from flowrl.nodes.policies.tqc import Tqc as Tqc
    from flowrl.nodes.policies.trpo import Trpo as Trpo
    from flowrl.nodes.policies.vdn import Vdn as Vdn
    from flowrl.nodes.policies.wqmix import Wqmix as Wqmix
    from flowrl.nodes.policy import Policy as Policy
    from flowrl.nodes.rewards.airl import Airl as Airl
    from flowrl.nodes.rewards.constant import Constant as Constant
    from flowrl.nodes.rewards.gail import Gail as Gail
    from flowrl.nodes.rewards.icm import Icm as Icm
    from flowrl.nodes.rewards.pwil import Pwil as Pwil
    from flowrl.nodes.rewards.red import Red as Red
    from flowrl.nodes.rewards.rnd import Rnd as Rnd
    from flowrl.nodes.rewards.shaping import Shaping as Shaping
    from flowrl.nodes.rewards.trex import Trex as Trex

BASE_CLASSES = ("flowrl.nodes.policy:Policy", "flowrl.nodes.envs.wrappers.wrapper:Wrapper")
LAUNCHER = "launcher"  # the only kind of which the types are not in this package
OTHER_CLASSES = ("flowrl.nodes.greedy_policy:GreedyPolicy",)  # not for graphs


if not TYPE_CHECKING:  # to type checkers it would promise every name

    def __getattr__(name: str) -> Any:
        paths = _paths()
        if name == "__all__":
            return sorted(paths)
        path = paths.get(name)
        if path is None:
            hint = spelling_hint(name, paths)
            raise AttributeError(
                f"module 'flowrl.nodes' has no '{name}'; {hint}; `flowrl nodes` lists all"
            )
        return getattr(importlib.import_module(path.partition(":")[0]), name)


def __dir__() -> list[str]:
    return sorted([*_paths(), *(name for name in globals() if name.startswith("__"))])


def _paths() -> dict[str, str]:
    from flowrl.nodes.catalogue import CATALOGUE

    listed = [
        path for kind, types in CATALOGUE.items() if kind != LAUNCHER for path in types.values()
    ]
    return {path.partition(":")[2]: path for path in (*listed, *BASE_CLASSES, *OTHER_CLASSES)}
