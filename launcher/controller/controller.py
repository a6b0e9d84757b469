"""The loop over a run's attempts: executes the supervisor's decisions on real hosts and clocks."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from launcher.controller.attempt_monitor import AttemptMonitor
from launcher.controller.classify import AGENT_FAILED, classify, wrong_hosts
from launcher.controller.supervisor import (
    Decision,
    Policy,
    RunEnded,
    StartAttempt,
    Supervisor,
    Wait,
)
from launcher.controller.surroundings import (
    AnyGang,
    AnyHostPool,
    Clock,
    Display,
    Requests,
    RunRecord,
    Surroundings,
    SystemClock,
)
from launcher.core.errors import HostError
from launcher.core.events import (
    HostExcludedEvent,
    Listener,
    StragglerEvent,
)
from launcher.core.results import AttemptResult, GangResult
from launcher.core.signals import Interrupts
from launcher.core.states import EndReason, RunState
from launcher.gang.agent_calls import AgentError, GangError, LostError
from launcher.gang.host_pool import HostPool
from launcher.gang.preflight import HostProblem, judge, needs_of
from launcher.health.failing_hosts import FailingHosts
from launcher.health.stragglers import Straggler
from launcher.planning import budget
from launcher.planning.spec import LaunchSpec
from launcher.requests.inbox import Inbox, Received
from launcher.requests.messages import Answer, Done, HostsRequest, Request
from trainer.contract.protocol.events import (
    CheckedEvent,
    CheckpointSavedEvent,
    Event,
    WarningEvent,
)
from trainer.contract.protocol.process_names import process_name

HELD_S, HELD_POLL_INTERVAL_S = 30.0, 2.0
"""Seconds that a host of a later attempt may take to become usable, and seconds between checks.
Processes of the previous attempt may still hold its chips, or its disk may still be emptied."""
WAITING = {
    RunState.BACKING_OFF: "starting again in {:.0f} s",
    RunState.WAITING_FOR_HOSTS: "waiting {:.0f} s at most for hosts",
}


class RealSurroundings:
    """The clock of this machine, hosts over Ray, and requests through the folder of the run."""

    clock: Clock = SystemClock()

    def host_pool(self, listener: Listener, whole: LaunchSpec) -> AnyHostPool:
        return HostPool(listener, whole)

    def requests(self, run: RunRecord, at_once: Callable[[Request], Answer | None]) -> Requests:
        return Inbox(lambda: run.folder, at_once)


class RunController(Listener):
    """Runs attempts of one run until the supervisor ends it. Hosts are kept between attempts."""

    def __init__(
        self,
        launch: LaunchSpec,
        run: RunRecord,
        display: Display,
        interrupts: Interrupts,
        surroundings: Surroundings | None = None,
        fallbacks: Sequence[LaunchSpec] | None = None,
    ) -> None:
        """Creates a controller of a run whose first attempt is recorded.

        `surroundings` are real by default. `fallbacks`: the launch on fewer hosts, as far as it may
        shrink; by default its own.
        """
        surroundings = surroundings or RealSurroundings()
        fallbacks = launch.fallback_specs() if fallbacks is None else fallbacks
        self.outcome: GangResult | None = None
        """Result of the last attempt; None when its programs did not run."""
        self._run, self._display, self._interrupts = run, display, interrupts
        self.clock = surroundings.clock
        self._whole, self._number = launch, launch.attempt
        """The launch on all hosts, and the number of the next attempt."""
        self._hosts = launch.within_limit.plan.world.hosts
        """Number of hosts in the last plan that was recorded."""
        self._layouts = {each.plan.world.hosts: each for each in (*fallbacks, launch)}
        """All launches that the job may run with, by their number of hosts."""
        run.write_smaller_plans(each.plan for each in self._layouts.values() if each is not launch)
        self._inbox = surroundings.requests(run, self._answer_at_once)
        self._monitor: AttemptMonitor | None = None
        """Monitor of the running attempt."""
        self._waiting: Wait | None = None
        """The last wait that was reported."""
        self._hosting = surroundings.host_pool(self, launch)
        self._processes_per_host = launch.plan.world.processes_per_host
        self._failing = FailingHosts(self._processes_per_host)
        self._slow: frozenset[int] = frozenset()
        """Processes of the last attempt that were stragglers when it ended."""
        retries = launch.job.retries
        policy = Policy(
            failures=retries.failures,
            preemptions=retries.preemptions,
            sizes=sorted(self._layouts),
            wait_for_hosts_s=launch.cluster.wait_for_hosts_s,
        )
        self._supervisor = Supervisor(policy)
        self._supervisor.limit(launch.host_limit)
        self._usage = run.usage()
        run.observe(self._usage.add)

    def run(self) -> RunEnded:
        """Runs attempts until the supervisor ends the run.

        Raises HostError when no hosts are available at the start or the whole cluster is lost.
        Raises GangError when the hosts cannot run the job, KeyboardInterrupt outside an attempt.
        """
        with self._hosting, self._inbox:
            while not isinstance(decision := self._decide(), RunEnded):
                if isinstance(decision, Wait):
                    self._wait(decision)
                elif isinstance(decision, StartAttempt):
                    self._attempt(self._layouts[decision.hosts])
            return decision

    def on_event(self, event: Event) -> None:
        if event.attempt is None:
            event = event.stamped(attempt=self._number - 1)
        self._run.add_event(event)
        self._display.on_event(event)
        if isinstance(event, CheckpointSavedEvent):
            self._supervisor.committed(event.step)
        if self._monitor:
            self._monitor.on_event(event)

    def on_line(self, process: int, line: str) -> None:
        self._display.on_line(process, line)

    def on_status(self, text: str) -> None:
        self._display.status(text)

    def new_requests(self) -> list[Received]:
        """Returns the requests of commands to this run."""
        return self._inbox.take()

    def wants_to_shrink(self) -> bool:
        """Returns whether the queue has given hosts of this run to another one."""
        return self._supervisor.wants_to_shrink()

    def wants_to_grow(self) -> bool:
        """Returns whether hosts have come back, from a loss or from another run."""
        return self._supervisor.wants_to_grow(self._alive())

    def is_over_budget(self) -> bool:
        """Returns whether the budget is used up, in all attempts together."""
        reason = budget.spent(self._whole.job.budget, self._usage.until(self.clock.time()))
        if reason:
            self._supervisor.budget_spent(reason)
        return bool(reason)

    def watched(self, launch: LaunchSpec) -> Collection[int]:
        """Returns the processes whose events the detectors see: see `HostPool.watched`."""
        return self._hosting.watched(launch)

    def check_hosts(self) -> None:
        """Raises HostError when the cluster itself is gone."""
        self._hosting.check_head()

    def keep_spares(self, launch: LaunchSpec) -> None:
        """Keeps the agents of spare hosts alive, and replaces lost spares."""
        self._hosting.keep_agents()
        self._hosting.keep_spares(launch)

    def on_straggler(self, straggler: Straggler) -> None:
        """Records a host that slows down the others. The host is reported, not stopped."""
        self.on_event(
            StragglerEvent(
                time=self.clock.time(),
                process=straggler.process,
                factor=straggler.factor,
                message=str(straggler),
            )
        )

    def _answer_at_once(self, request: Request) -> Answer | None:
        """Answers a request that concerns no running program; None for others."""
        if not isinstance(request, HostsRequest):
            return None
        self._supervisor.limit(request.hosts)
        return Done()

    def _alive(self) -> int:
        return self._hosting.available_hosts(self._whole.plan.world)

    def _decide(self) -> Decision:
        """Returns the supervisor's decision.

        Raises KeyboardInterrupt when a stop was requested but the attempt ended by itself.
        """
        self.is_over_budget()
        decision = self._supervisor.decide(self._alive(), self.clock.monotonic())
        if self._interrupts.asked and not isinstance(decision, RunEnded):
            raise KeyboardInterrupt
        return decision

    def _wait(self, wait: Wait) -> None:
        """Waits until hosts may have come. A signal raises KeyboardInterrupt."""
        left_s = wait.until_s - self.clock.monotonic()
        if wait != self._waiting:
            self._waiting = wait
            self._run.set_state(wait.state, reason=wait.why)
            what = WAITING[wait.state].format(left_s)
            self._display.status(f"{what}: {wait.why}")
        self._hosting.keep_agents()
        self.clock.wait_for_change(left_s)

    def _attempt(self, layout: LaunchSpec) -> None:
        launch, hosts = replace(layout, attempt=self._number), layout.plan.world.hosts
        if hosts < self._hosts and hosts == self._supervisor.most_hosts:
            self._hosting.give_up_hosts()
        if self._number > self._whole.attempt or hosts != self._hosts:
            self._run.begin(launch)
            self._display.attempt(launch)
        self._number, self._hosts = self._number + 1, hosts
        self._supervisor.began(hosts)
        began = self.clock.monotonic()
        ending = self._run_attempt(launch)
        ending = replace(ending, ran_s=self.clock.monotonic() - began)
        self._run.end_attempt(ending)
        self._supervisor.ended(ending, self.clock.monotonic())
        self._display.attempt_ended(ending)
        if ending.end_reason is EndReason.WRONG_HOST:
            self._ban_wrong_hosts()
            return
        is_excluding = self._exclude_failing(ending)
        lost = ending.end_reason.is_loss or (self.outcome is not None and self.outcome.lost)
        if lost or is_excluding or ending.end_reason.is_resize:
            self._hosting.regroup(self.outcome)

    def _ban_wrong_hosts(self) -> None:
        """Keeps the run off the hosts that computed wrong, even if no other hosts are idle."""
        gang = self._hosting.current
        if gang is None or self.outcome is None:
            return
        wrong = wrong_hosts(self.outcome)
        for process in wrong:
            name = process_name(process, self._processes_per_host)
            self._record_exclusion(gang, process, f"{name} computed wrong")
        self._hosting.ban(wrong)

    def _record_exclusion(self, gang: AnyGang, process: int, reason: str) -> None:
        address = gang.members[process].host.address
        self.on_event(
            HostExcludedEvent(
                time=self.clock.time(), process=process, address=address, reason=reason
            )
        )

    def _exclude_failing(self, ending: AttemptResult) -> bool:
        """Lets the next attempt avoid hosts that failed again or stayed slow, if others are idle.

        Returns whether there are such hosts.
        """
        gang = self._hosting.current
        if gang is None or ending.end_reason.is_orderly:
            return False
        is_failure = ending.end_reason.is_failure or ending.end_reason is EndReason.LOST
        failed = ending.process if is_failure else None
        involved = self._slow if failed is None else {failed, *self._slow}
        hosts = {process: gang.members[process].host for process in involved}
        places = {process: host.place for process, host in hosts.items()}
        avoided = self._failing.record(places, failed, self._slow)
        if not avoided or self._alive() <= self._hosts:
            return False
        for process, reason in avoided.items():
            self._hosting.exclude(process)
            self._record_exclusion(gang, process, reason)
        return True

    def _is_first(self, launch: LaunchSpec) -> bool:
        """Returns whether this is the command's first attempt, whose errors go to the user."""
        return launch.attempt == self._whole.attempt

    def _run_attempt(self, launch: LaunchSpec) -> AttemptResult:
        """Runs an attempt. An error that keeps the programs from running ends the attempt.

        Raises HostError and GangError when hosts are missing or unfit for the first attempt.
        """
        self.outcome = None
        try:
            return self._run_programs(launch)
        except LostError as error:
            self._hosting.dismiss(lost_hosts=error.suspects)
            return AttemptResult(EndReason.LOST, str(error), "lost")
        except AgentError as error:
            self._hosting.dismiss(error.suspects)
            return AttemptResult(EndReason.CRASH, str(error), AGENT_FAILED)
        except GangError as error:
            if self._is_first(launch):
                raise
            self._hosting.dismiss(error.suspects)
            return AttemptResult(EndReason.CRASH, str(error), "hosts that cannot serve the run")
        except HostError as error:
            self._hosting.check_head()
            if self._is_first(launch):
                raise
            return AttemptResult(EndReason.LOST, str(error), "lost")

    def _run_programs(self, launch: LaunchSpec) -> AttemptResult:
        self._run.set_state(RunState.PROVISIONING)
        gang = self._hosting.gang(launch)
        self._run.set_state(RunState.STARTING)
        if self._hosting.unknown(gang):
            self._display.status("looking at every host")
            self._report_problems(self._run_preflight(launch, gang))
            self._display.status("checking versions, code and data on every host")
            reports = gang.check(launch, self._hosting.known(gang))
            _check_corpus(launch, reports)
            self._hosting.know(gang, reports)
        self._display.status("starting the program on every host")
        self._monitor = monitor = AttemptMonitor(launch, self, self._interrupts, self._display)
        self._run.set_state(RunState.RUNNING)
        try:
            with self._interrupts.stopping_in_order():
                port = launch.cluster.coordinator_port
                self.outcome = gang.run(launch, port, monitor)
        finally:
            self._monitor, self._slow = None, monitor.slow
        return classify(self.outcome, monitor.asked, monitor.steps)

    def _run_preflight(self, launch: LaunchSpec, gang: AnyGang) -> list[HostProblem]:
        """Returns the problems of the hosts; in a later attempt, those that remain after HELD_S."""
        given_up = self.clock.monotonic() + (0.0 if self._is_first(launch) else HELD_S)
        while True:
            problems = judge(gang.run_preflight(launch.plan.world.platform), needs_of(launch))
            fatal = [str(problem) for problem in problems if problem.is_fatal]
            if not fatal or self._interrupts.asked or self.clock.monotonic() >= given_up:
                return problems
            self._display.status(f"waiting {HELD_S:.0f} s at most for {'; '.join(fatal)}")
            self.clock.sleep(HELD_POLL_INTERVAL_S)

    def _report_problems(self, problems: Sequence[HostProblem]) -> None:
        """Records the other problems as warnings. Raises GangError with the fatal ones."""
        for problem in problems:
            if not problem.is_fatal:
                self.on_event(
                    WarningEvent(
                        time=self.clock.time(),
                        process=self._first_process(problem),
                        category="host",
                        message=problem.text,
                    )
                )
        if fatal := [problem for problem in problems if problem.is_fatal]:
            text = "\n".join(["the hosts cannot serve this run:", *map(str, fatal)])
            raise GangError(text, list(map(self._first_process, fatal)))

    def _first_process(self, problem: HostProblem) -> int:
        """Returns the first process of the host with a problem."""
        return problem.host * self._processes_per_host


def _check_corpus(launch: LaunchSpec, reports: Mapping[int, CheckedEvent]) -> None:
    """Raises GangError when a host has another corpus than the one of the plan."""
    planned, per_host = launch.corpus_sha256, launch.plan.world.processes_per_host
    for process, report in reports.items():
        seen = report.corpus_sha256
        if planned and seen != planned:
            name = process_name(process, per_host)
            raise GangError(
                f"{name} has another corpus than this machine ({seen} here, planned {planned}): "
                "the hosts need the Python version of the launcher for 'stdlib'",
                [process],
            )
