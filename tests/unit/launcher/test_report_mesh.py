"""The drawing of a mesh on hosts, and of hosts in the torus."""

from launcher.report.mesh import Mesh, meshes
from tests.support.llama_jobs import CORPUS, job_of, world_of
from trainer.contract.planning.plan import BasePlan, Plan
from trainer.contract.planning.planner import resolve


def plan_of(accelerator: str, **axes: int) -> Plan:
    return resolve(job_of(64, "none", **axes), world_of(accelerator), CORPUS)


def only(plan: BasePlan) -> Mesh:
    (mesh,) = meshes({1: plan})
    return mesh


def hosts(mesh: Mesh) -> list[list[int]]:
    return [[cell.host for cell in row.cells] for row in mesh.rows]


def test_attempts_with_the_same_plan_share_a_mesh() -> None:
    large, small = plan_of("v4-16"), plan_of("v4-8")
    assert [mesh.attempts for mesh in meshes({1: large, 2: large, 3: small, 4: large})] == [
        [1, 2, 4], [3]
    ]  # fmt: skip


def test_each_device_is_in_the_mesh_and_in_the_torus_once() -> None:
    plan = plan_of("v4-32", fsdp=4, tensor=4)
    mesh = only(plan)
    in_mesh = [cell.title for row in mesh.rows for cell in row.cells]
    in_torus = [cell.title for plane in mesh.planes for row in plane.rows for cell in row]
    assert len(set(in_mesh)) == plan.world.devices == 16
    assert sorted(in_mesh) == sorted(in_torus)


def test_fsdp_runs_along_the_rows() -> None:
    mesh = only(plan_of("v4-16", fsdp=4, tensor=2))
    assert [row.label for row in mesh.rows] == ["tensor 0", "tensor 1"]
    assert [len(row) for row in hosts(mesh)] == [4, 4]


def test_torus_has_a_plane_for_each_position_of_the_third_axis() -> None:
    mesh = only(plan_of("v4-32"))
    assert [plane.label for plane in mesh.planes] == ["z 0", "z 1", "z 2", "z 3"]
    assert [[cell.host for cell in row] for row in mesh.planes[2].rows] == [[2, 2], [2, 2]]
    assert mesh.planes[0].rows[1][0].title.endswith("chip (0, 1, 0)")


def test_program_without_a_mesh_shows_its_hosts() -> None:
    mesh = only(BasePlan(world=world_of("v4-16")))
    assert (mesh.rows, mesh.mesh) == ([], "")
    assert mesh.world == "2 hosts x 4 devices of v4-16, torus 2x2x2"


def test_very_large_mesh_is_described_and_not_drawn() -> None:
    mesh = only(BasePlan(world=world_of("v5p-4096")))
    assert (mesh.rows, mesh.planes) == ([], [])
