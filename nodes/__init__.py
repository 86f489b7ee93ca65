"""The node library: environments, policies, models, collectors, buffers, reward models, learners, evaluators."""
