"""Hosts that are pods of a Kubernetes cluster: a Ray cluster of KubeRay's, made for one run."""
