"""What the launcher of Kubernetes needs: access to a cluster, its API server, manifests, and the states of pods."""
