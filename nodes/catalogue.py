"""The built-in types by kind: from the type's name in a graph to the import path of its class.

Policies and reward models are found by their files: `policies/td3.py` defines the type `td3` by its
class `Td3`. The other types are listed here. Neither way imports the class.
"""

from __future__ import annotations

from pathlib import Path


def types_in_folder(folder: str) -> dict[str, str]:
    """The types of a folder in which each module `some_type.py` defines the class `SomeType`."""
    files = sorted((Path(__file__).parent / folder).glob("[a-z]*.py"))
    return {
        file.stem: f"flowrl.nodes.{folder}.{file.stem}:{_class_name(file.stem)}" for file in files
    }


def _class_name(type_name: str) -> str:
    return "".join(word.capitalize() for word in type_name.split("_"))


CATALOGUE: dict[str, dict[str, str]] = {
    "node": {
        "env_manager": "flowrl.nodes.env_managers.serial_env_manager:SerialEnvManager",
        "sync_subprocess_env_manager": (
            "flowrl.nodes.env_managers.subprocess_env_managers:SyncSubprocessEnvManager"
        ),
        "async_subprocess_env_manager": (
            "flowrl.nodes.env_managers.subprocess_env_managers:AsyncSubprocessEnvManager"
        ),
        "vector_env_manager": "flowrl.nodes.env_managers.vector_env_manager:VectorEnvManager",
        "envpool_env_manager": "flowrl.nodes.env_managers.vector_env_manager:EnvPoolEnvManager",
        "thread_env_manager": "flowrl.nodes.env_managers.thread_env_manager:ThreadEnvManager",
        "sample_collector": "flowrl.nodes.collectors.sample_collector:SampleCollector",
        "episode_collector": "flowrl.nodes.collectors.episode_collector:EpisodeCollector",
        "group_collector": "flowrl.nodes.collectors.group_collector:GroupCollector",
        "match_collector": "flowrl.nodes.collectors.match_collector:MatchCollector",
        "naive_buffer": "flowrl.nodes.buffers.naive_replay_buffer:NaiveReplayBuffer",
        "episode_buffer": "flowrl.nodes.buffers.episode_replay_buffer:EpisodeReplayBuffer",
        "sequence_buffer": "flowrl.nodes.buffers.sequence_replay_buffer:SequenceReplayBuffer",
        "rows": "flowrl.nodes.buffers.row_splitter:RowSplitter",
        "queue_buffer": "flowrl.nodes.buffers.queue_buffer:QueueBuffer",
        "advanced_buffer": "flowrl.nodes.buffers.advanced_replay_buffer:AdvancedReplayBuffer",
        "learner": "flowrl.nodes.learners.learner:Learner",
        "evaluator": "flowrl.nodes.evaluators.evaluator:Evaluator",
        "group_evaluator": "flowrl.nodes.evaluators.group_evaluator:GroupEvaluator",
        "match_evaluator": "flowrl.nodes.evaluators.match_evaluator:MatchEvaluator",
        "demos": "flowrl.nodes.datasets.dataset_reader:DatasetReader",
        "league": "flowrl.nodes.league.league:League",
        "npz_writer": "flowrl.nodes.datasets.dataset_writer:DatasetWriter",
        "expert_labels": "flowrl.nodes.labels.expert_labels:ExpertLabels",
        "return_weights": "flowrl.nodes.labels.return_weights:ReturnWeights",
        **types_in_folder("rewards"),
    },
    "policy": types_in_folder("policies"),
    "env": {
        "gymnasium": "flowrl.nodes.envs.gymnasium:Gymnasium",
        "gym": "flowrl.nodes.envs.legacy_gym:LegacyGym",
        "pettingzoo": "flowrl.nodes.envs.pettingzoo:PettingZoo",
        "open_spiel": "flowrl.nodes.envs.open_spiel:OpenSpiel",
        "tuple_agents": "flowrl.nodes.envs.tuple_agents:TupleAgents",
    },
    "wrapper": {
        "wrapper": "flowrl.nodes.envs.wrappers.wrapper:ImportedWrapper",
        "frame_stack": "flowrl.nodes.envs.wrappers.frame_stack:FrameStack",
        "gray": "flowrl.nodes.envs.wrappers.images:Gray",
        "resize": "flowrl.nodes.envs.wrappers.images:Resize",
        "reward_clip": "flowrl.nodes.envs.wrappers.rewards:RewardClip",
        "reward_goal": "flowrl.nodes.envs.wrappers.rewards:RewardGoal",
        "reward_normalise": "flowrl.nodes.envs.wrappers.rewards:RewardNormalise",
        "select": "flowrl.nodes.envs.wrappers.select:Select",
        "sticky_actions": "flowrl.nodes.envs.wrappers.actions:StickyActions",
        "action_repeat": "flowrl.nodes.envs.wrappers.actions:ActionRepeat",
        "action_scale": "flowrl.nodes.envs.wrappers.actions:ActionScale",
        "action_mask": "flowrl.nodes.envs.wrappers.leaves:ActionMask",
        "previous": "flowrl.nodes.envs.wrappers.leaves:Previous",
        "noop_start": "flowrl.nodes.envs.wrappers.episodes:NoopStart",
        "fire_on_reset": "flowrl.nodes.envs.wrappers.episodes:FireOnReset",
        "episodic_life": "flowrl.nodes.envs.wrappers.episodes:EpisodicLife",
        "time_limit": "flowrl.nodes.envs.wrappers.episodes:TimeLimit",
    },
    "transform": {
        "her": "flowrl.nodes.buffers.transforms.her:Her",
    },
    "model": {
        "auto": "flowrl.nodes.models.chosen:Auto",
        "cnn": "flowrl.nodes.models.cnn:Cnn",
        "mlp": "flowrl.nodes.models.mlp:Mlp",
        "gru": "flowrl.nodes.models.recurrent:Gru",
        "lstm": "flowrl.nodes.models.recurrent:Lstm",
        "layers": "flowrl.nodes.models.chosen:Layers",
        "module": "flowrl.nodes.models.model:ModuleModel",
    },
    "layer": {
        "dense": "flowrl.nodes.models.layers:DenseLayer",
        "batch_norm": "flowrl.nodes.models.layers:BatchNormLayer",
        "flatten": "flowrl.nodes.models.layers:FlattenLayer",
        "conv": "flowrl.nodes.models.layers:ConvLayer",
        "gru": "flowrl.nodes.models.layers:GruLayer",
        "lstm": "flowrl.nodes.models.layers:LstmLayer",
    },
    "optimiser": {
        "adam": "flowrl.nodes.models.optimisers:Adam",
        "adamw": "flowrl.nodes.models.optimisers:Adamw",
        "rmsprop": "flowrl.nodes.models.optimisers:Rmsprop",
        "sgd": "flowrl.nodes.models.optimisers:Sgd",
    },
    "hook": {
        "save": "flowrl.nodes.learners.hooks:Save",
        "nan_guard": "flowrl.nodes.learners.hooks:NanGuard",
        "averaged_weights": "flowrl.nodes.learners.hooks:AveragedWeights",
        "gradient_statistics": "flowrl.nodes.learners.hooks:GradientStatistics",
    },
    "exploring_step": {
        "action_noise": "flowrl.nodes.exploring:ActionNoise",
        "ou_noise": "flowrl.nodes.exploring:OuNoise",
        "random_actions": "flowrl.nodes.exploring:RandomActions",
        "epsilon_ladder": "flowrl.nodes.exploring:EpsilonLadder",
    },
    "launcher": {
        "kubernetes": "flowrl.cluster.launchers.kubernetes:Kubernetes",
        "local": "flowrl.cluster.launchers.local:Local",
        "ray": "flowrl.cluster.launchers.ray:Ray",
        "slurm": "flowrl.cluster.launchers.slurm:Slurm",
        "ssh": "flowrl.cluster.launchers.ssh:Ssh",
    },
    "storage": {
        "memory": "flowrl.nodes.buffers.storage.storage:MemoryStorage",
        "compressed": "flowrl.nodes.buffers.storage.compressed:CompressedStorage",
        "mapped": "flowrl.nodes.buffers.storage.mapped:MappedStorage",
    },
}
