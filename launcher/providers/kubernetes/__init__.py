"""Hosts that are Kubernetes pods: KubeRay creates one RayCluster for each run."""
