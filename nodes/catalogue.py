"""The names of the built-in types: by kind, from the name in a graph to an import path."""

from __future__ import annotations

CATALOGUE: dict[str, dict[str, str]] = {
    "node": {
        "env_manager": "flowrl.nodes.env_managers.base_env_manager:BaseEnvManager",
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
        "naive_buffer": "flowrl.nodes.buffers.naive_replay_buffer:NaiveReplayBuffer",
        "episode_buffer": "flowrl.nodes.buffers.episode_replay_buffer:EpisodeReplayBuffer",
        "sequence_buffer": "flowrl.nodes.buffers.sequence_replay_buffer:SequenceReplayBuffer",
        "rows": "flowrl.nodes.buffers.row_splitter:RowSplitter",
        "queue_buffer": "flowrl.nodes.buffers.queue_buffer:QueueBuffer",
        "advanced_buffer": "flowrl.nodes.buffers.advanced_replay_buffer:AdvancedReplayBuffer",
        "learner": "flowrl.nodes.learners.learner:Learner",
        "evaluator": "flowrl.nodes.evaluators.evaluator:Evaluator",
        "demos": "flowrl.nodes.datasets.dataset_reader:DatasetReader",
        "npz_writer": "flowrl.nodes.datasets.dataset_writer:DatasetWriter",
        "rnd": "flowrl.nodes.rewards.rnd:Rnd",
    },
    "policy": {
        "random": "flowrl.nodes.policies.random:Random",
        "expert": "flowrl.nodes.policies.expert:Expert",
        "dqn": "flowrl.nodes.policies.dqn:Dqn",
        "r2d2": "flowrl.nodes.policies.r2d2:R2d2",
        "ppo": "flowrl.nodes.policies.ppo:Ppo",
    },
    "env": {
        "gymnasium": "flowrl.nodes.envs.gymnasium:Gymnasium",
        "gym": "flowrl.nodes.envs.legacy_gym:LegacyGym",
        "pettingzoo": "flowrl.nodes.envs.pettingzoo:PettingZoo",
    },
    "wrapper": {
        "wrapper": "flowrl.nodes.envs.wrappers.own:ByPath",
        "frame_stack": "flowrl.nodes.envs.wrappers.frame_stack:FrameStack",
        "gray": "flowrl.nodes.envs.wrappers.images:Gray",
        "resize": "flowrl.nodes.envs.wrappers.images:Resize",
        "reward_clip": "flowrl.nodes.envs.wrappers.rewards:RewardClip",
        "reward_normalise": "flowrl.nodes.envs.wrappers.rewards:RewardNormalise",
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
        "n_step": "flowrl.nodes.buffers.transforms.n_step:NStep",
        "her": "flowrl.nodes.buffers.transforms.her:Her",
    },
    "model": {
        "cnn": "flowrl.nodes.models.cnn:Cnn",
        "mlp": "flowrl.nodes.models.mlp:Mlp",
        "gru": "flowrl.nodes.models.gru:Gru",
        "module": "flowrl.nodes.models.model:ModuleModel",
    },
    "storage": {
        "memory": "flowrl.nodes.buffers.storage.storage:MemoryStorage",
        "compressed": "flowrl.nodes.buffers.storage.compressed:CompressedStorage",
        "mapped": "flowrl.nodes.buffers.storage.mapped:MappedStorage",
    },
}
