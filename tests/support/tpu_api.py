"""A stand-in for the Cloud TPU API: a gRPC server of the client's own message types.

It gives out machines of tests/e2e/ssh as the hosts of slices, queues, refuses, preempts and
deletes as the real one is documented to. No TPU is behind it.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.cloud import tpu_v2
from google.longrunning import operations_pb2

SERVICE = "google.cloud.tpu.v2.Tpu"
State = tpu_v2.QueuedResourceState.State


@dataclass
class Held:
    """A queued resource."""

    resource: Any
    states: list[Any]
    """That it goes through, one for each time that it is asked for."""
    nodes: dict[str, Any] = field(default_factory=dict)
    machines: list[int] = field(default_factory=list)


class StandIn:
    """`addresses`: of machines that can be had, in the order in which they are given out."""

    def __init__(self, addresses: list[str], keys: Path | None = None) -> None:
        self.addresses, self._keys = addresses, keys
        self.free = list(range(len(addresses)))
        self.held: dict[str, Held] = {}
        self.asked: list[Any] = []
        """All requests for a queued resource."""
        self.deleted: list[str] = []
        self.before: list[Any] = [State.WAITING_FOR_RESOURCES, State.PROVISIONING]
        """The states of the next resource before it is active."""
        self.refuse_with: tuple[grpc.StatusCode, str] | None = None
        self.fail_with = ""
        """Why the next resource fails after it was queued."""
        self.silent = 0
        """So many of the next questions get no answer."""
        self.on_taken: Callable[[list[int]], None] = lambda machines: None
        """What becomes of machines that are preempted or deleted."""
        self.endpoint = ""
        self._lock = threading.RLock()

    def preempt(self) -> None:
        """Take the machines of all active resources away."""
        with self._lock:
            for held in self.held.values():
                for node in held.nodes.values():
                    node.state = tpu_v2.Node.State.PREEMPTED
                held.states = [State.SUSPENDED]
                self._take(held)

    def create(self, request: Any, context: grpc.ServicerContext) -> Any:
        with self._lock:
            self.asked.append(request)
            if self.refuse_with:
                context.abort(*self.refuse_with)
            if request.queued_resource_id in self.held:
                context.abort(grpc.StatusCode.ALREADY_EXISTS, "there is one of this name")
            states = [*self.before, State.FAILED if self.fail_with else State.ACTIVE]
            held = Held(tpu_v2.QueuedResource(request.queued_resource), states)
            held.resource.name = f"{request.parent}/queuedResources/{request.queued_resource_id}"
            self.held[request.queued_resource_id] = held
            made = operations_pb2.Operation(name="operations/create", done=True)
            made.response.Pack(tpu_v2.QueuedResource.pb(held.resource))
            return made

    def get(self, request: Any, context: grpc.ServicerContext) -> Any:
        with self._lock:
            if self.silent:
                self.silent -= 1
                context.abort(grpc.StatusCode.UNAVAILABLE, "try later")
            held = self._find(request.name, context)
            state = held.states.pop(0) if len(held.states) > 1 else held.states[0]
            if state == State.ACTIVE and not held.nodes:
                self._make_nodes(held)
            held.resource.state = tpu_v2.QueuedResourceState(state=state)
            if state == State.FAILED:
                error = tpu_v2.QueuedResourceState.FailedData(error={"message": self.fail_with})
                held.resource.state.failed_data = error
            return held.resource

    def list(self, request: Any, context: grpc.ServicerContext) -> Any:
        with self._lock:
            own = [
                held.resource
                for held in self.held.values()
                if held.resource.name.startswith(f"{request.parent}/")
            ]
            return tpu_v2.ListQueuedResourcesResponse(queued_resources=own)

    def get_node(self, request: Any, context: grpc.ServicerContext) -> Any:
        with self._lock:
            for held in self.held.values():
                if (node := held.nodes.get(request.name.rpartition("/")[2])) is not None:
                    return node
        return context.abort(grpc.StatusCode.NOT_FOUND, f"{request.name} is not there")

    def delete(self, request: Any, context: grpc.ServicerContext) -> Any:
        with self._lock:
            held = self._find(request.name, context)
            active = any(node.state == tpu_v2.Node.State.READY for node in held.nodes.values())
            if active and not request.force:
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, "it has nodes; say force")
            name = request.name.rpartition("/")[2]
            self.deleted.append(name)
            self._take(held)
            del self.held[name]
        return operations_pb2.Operation(name="operations/delete", done=True)

    def _find(self, name: str, context: grpc.ServicerContext) -> Held:
        held = self.held.get(name.rpartition("/")[2])
        if held is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"{name} is not there")
        assert held
        return held

    def _make_nodes(self, held: Held) -> None:
        (spec,) = held.resource.tpu.node_spec
        several = spec.multislice_params
        names = [spec.node_id] if spec.node_id else [
            f"{several.node_id_prefix}-{n}" for n in range(several.node_count)
        ]  # fmt: skip
        hosts = len(self.free) // len(names)
        for name in names:
            node = tpu_v2.Node(spec.node, name=f"{spec.parent}/nodes/{name}", state="READY")
            for _ in range(hosts):
                machine = self.free.pop(0)
                held.machines.append(machine)
                ip = self.addresses[machine]
                access = tpu_v2.AccessConfig(external_ip=ip)
                node.network_endpoints.append(
                    tpu_v2.NetworkEndpoint(ip_address=ip, access_config=access)
                )
            held.nodes[name] = node
        self._let_in(spec.node.metadata["ssh-keys"])

    def _let_in(self, ssh_keys: str) -> None:
        """As the guest agent of a host does."""
        if self._keys:
            with self._keys.open("a") as keys:
                keys.write(ssh_keys.partition(":")[2] + "\n")

    def _take(self, held: Held) -> None:
        taken, held.machines = held.machines, []
        self.on_taken(taken)
        self.free = sorted({*self.free, *taken})


@contextmanager
def serving(stand_in: StandIn) -> Iterator[StandIn]:
    """On a port of this machine, until the end of this context."""
    handlers = {
        "CreateQueuedResource": (
            tpu_v2.CreateQueuedResourceRequest,
            lambda request, context: stand_in.create(request, context),
        ),
        "ListQueuedResources": (tpu_v2.ListQueuedResourcesRequest, stand_in.list),
        "GetQueuedResource": (tpu_v2.GetQueuedResourceRequest, stand_in.get),
        "DeleteQueuedResource": (tpu_v2.DeleteQueuedResourceRequest, stand_in.delete),
        "GetNode": (tpu_v2.GetNodeRequest, stand_in.get_node),
    }
    methods = {
        name: grpc.unary_unary_rpc_method_handler(
            method, request_deserializer=kind.deserialize, response_serializer=_serialize
        )
        for name, (kind, method) in handlers.items()
    }
    server = grpc.server(futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, methods)])
    stand_in.endpoint = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield stand_in
    finally:
        server.stop(None).wait()


def _serialize(message: Any) -> bytes:
    if isinstance(message, operations_pb2.Operation):
        return message.SerializeToString()
    return type(message).serialize(message)


def kill(processes: list[int]) -> None:
    """As when their machine is switched off."""
    for process in processes:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            continue
