"""The protocol of a group, explored: lost, late and repeated messages, crashes and two drivers.

Whatever the order, no two versions are served by one group; and once everything is there again, the
group comes to serve what is wanted.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from skerry.island_agent.groups.coordinator import Phase, is_quorum
from tests.island_agent.groups.world import Asked, World, served

who = st.integers(0, 4)
some = st.integers(0, 31)
outcomes = st.sampled_from(("ok", "ok", "ok", "ok", "ok", "ok", "no", "broken"))


class Coarse(RuleBasedStateMachine):
    """Whole stretches of a switch, among some of the agents: few steps lead far."""

    @initialize(count=st.integers(1, 4), fresh=st.booleans())
    def begin_with(self, count: int, fresh: bool) -> None:
        self.world = World(count) if fresh else at(0, count)

    def _name(self, number: int) -> str:
        return self.world.names[number % len(self.world.names)]

    def _some(self, mask: int) -> list[str]:
        return [name for index, name in enumerate(self.world.names) if mask >> index & 1]

    @rule(number=who, mask=some | st.just(31), until=st.sampled_from(Phase), patient=st.booleans())
    def a_leader_gets_as_far_as(self, number: int, mask: int, until: Phase, patient: bool) -> None:
        """Among the agents that it reaches; deep states are rarely met by single steps."""
        among = self._some(mask)
        if self.world.agents[self._name(number)].disk.serves == self.world.wanted:
            self.world.wanted = served(self.world.wanted.version + 1)
        drive(self.world, self._name(number), among, until=until, patient=patient)

    @rule(number=who)
    def an_agent_is_killed(self, number: int) -> None:
        self.world.agents[self._name(number)].crash()

    @rule(number=who)
    def an_agent_comes_back(self, number: int) -> None:
        agent = self.world.agents[self._name(number)]
        if not agent.up:
            agent.start()

    @rule(number=who, follows=st.booleans())
    def an_engine_loads_the_mirror(self, number: int, follows: bool) -> None:
        agent = self.world.agents[self._name(number)]
        if follows:
            agent.follow()
        if agent.up:
            agent.rejoin()

    @rule(mask=some)
    def some_agents_tell_each_other_what_was_decided(self, mask: int) -> None:
        self.world.gossip(self._some(mask))

    @invariant()
    def one_version_is_served(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.heal()
            assert self.world.is_done(), {
                n: (a.admits, a.disk, a.member.round) for n, a in self.world.agents.items()
            }


class Fine(Coarse):
    """Every message and every step of an engine by itself."""

    @rule(number=who, mask=some)
    def an_agent_takes_the_lead(self, number: int, mask: int) -> None:
        self.world.begin(self._name(number), self._some(mask))

    @rule(number=who)
    def a_leader_speaks(self, number: int) -> None:
        self.world.send(self._name(number))

    @rule(index=st.integers(0, 100))
    def a_message_arrives(self, index: int) -> None:
        network = self.world.network
        if network:
            self.world.deliver(network.pop(index % len(network)))

    @rule()
    def all_messages_arrive_in_order(self) -> None:
        for _ in range(len(self.world.network)):
            self.world.deliver(self.world.network.pop(0))
            self.world.check()
        while self.world.network:
            self.world.deliver(self.world.network.pop(0))
            self.world.check()

    @rule(index=st.integers(0, 100))
    def a_message_arrives_twice(self, index: int) -> None:
        network = self.world.network
        if network:
            self.world.deliver(network[index % len(network)])

    @rule(index=st.integers(0, 100))
    def a_message_is_lost(self, index: int) -> None:
        if self.world.network:
            self.world.network.pop(index % len(self.world.network))

    @rule(number=who, index=st.integers(0, 3), outcome=outcomes)
    def an_engine_works(self, number: int, index: int, outcome: str) -> None:
        self.world.agents[self._name(number)].work(index, outcome)

    @rule()
    def all_engines_work(self) -> None:
        for agent in self.world.agents.values():
            agent.work(0, "ok")

    @rule(number=who)
    def a_leader_loses_patience(self, number: int) -> None:
        self.world.agents[self._name(number)].coordinator.expire()

    @rule(number=who)
    def an_engine_is_withdrawn(self, number: int) -> None:
        self.world.agents[self._name(number)].withdraw()

    @rule(number=who)
    def an_agent_gives_up(self, number: int) -> None:
        self.world.agents[self._name(number)].give_up()

    @rule()
    def a_version_is_published(self) -> None:
        self.world.wanted = served(self.world.wanted.version + 1)


TestCoarse = Coarse.TestCase
TestCoarse.settings = settings(max_examples=150, stateful_step_count=20, deadline=None)
TestFine = Fine.TestCase
TestFine.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)


def drive(
    world: World, leader: str, among: list[str], *, until: Phase, patient: bool = False
) -> None:
    """Let what the leader does go well with some of the agents; then wait for nobody else."""
    coordinator = world.agents[leader].coordinator
    among = sorted({*among, leader})
    world.begin(leader, among)
    while world.agents[leader].up and coordinator.phase not in (Phase.IDLE, until):
        before = coordinator.phase, dict(coordinator.answers)
        others = world.network[:]
        world.network.clear()
        world.send(leader)
        while world.network and coordinator.phase is not until:
            message = world.network.pop(0)
            if not isinstance(message, Asked) or message.agent in among:
                world.deliver(message)
                world.check()
        world.network[:0] = others
        for name in among:
            world.agents[name].work(0, "ok")
            world.check()
        if (coordinator.phase, coordinator.answers) == before:
            if patient:
                return
            coordinator.expire()


def in_order(world: World, *, until: Phase | None = None, leader: str = "a") -> None:
    """Let everything go well, until the leader is in a phase."""
    world.begin(leader, world.names)
    coordinator = world.agents[leader].coordinator
    while coordinator.phase not in (Phase.IDLE, until):
        world.send(leader)
        while world.network and coordinator.phase is not until:
            world.deliver(world.network.pop(0))
            world.check()
        for agent in world.agents.values():
            agent.work(0, "ok")
            world.check()
    world.network.clear()


def settle(world: World, leader: str) -> None:
    """Let everybody who is there answer, and the leader wait for nobody else."""
    coordinator = world.agents[leader].coordinator
    while coordinator.phase is not Phase.IDLE:
        phase = coordinator.phase
        world.send(leader)
        while world.network:
            world.deliver(world.network.pop(0))
            world.check()
        if coordinator.phase is phase:
            coordinator.expire()


def at(version: int, count: int = 2) -> World:
    world = World(count)
    world.wanted = served(version)
    in_order(world)
    assert world.is_done()
    world.wanted = served(version + 1)
    return world


def test_two_quorums_always_share_an_agent() -> None:
    for count in range(1, 7):
        agents = "abcdef"[:count]
        quorums = [
            {name for index, name in enumerate(agents) if mask >> index & 1}
            for mask in range(2**count)
        ]
        quorums = [some for some in quorums if is_quorum(some, agents)]
        assert quorums
        assert all(one & other for one in quorums for other in quorums)


def test_an_agent_that_cannot_follow_has_the_others_go_back() -> None:
    world = at(0)
    in_order(world, until=Phase.COMMIT)
    world.send("a")
    while world.network:
        world.deliver(world.network.pop(0))
    world.agents["a"].work(0, "ok")
    assert world.agents["a"].paused
    world.agents["b"].work(0, "the old words were others")
    settle(world, "a")
    assert {agent.admits for agent in world.agents.values()} == {served(0)}
    assert world.agents["a"].coordinator.reason == "b: the old words were others"


def test_a_lost_coordinator_of_three_is_survived_without_it_before_and_after_the_decision() -> None:
    for until, outcome in ((Phase.DECIDE, served(0)), (Phase.TEACH, served(1))):
        world = at(0, 3)
        in_order(world, until=until)
        world.agents["a"].crash()
        assert world.agents["b"].paused
        world.gossip(("b", "c"))
        world.begin("b", ("b", "c"))
        settle(world, "b")
        assert {world.agents[name].admits for name in "bc"} == {outcome}
        world.agents["a"].start()
        world.gossip(world.names)
        if outcome == served(1):
            world.agents["a"].follow()
        world.agents["a"].rejoin()
        assert world.agents["a"].disk.serves == outcome


def test_of_two_the_higher_one_waits_for_the_lower_once_it_has_voted() -> None:
    world = at(0)
    in_order(world, until=Phase.DECIDE)
    world.agents["a"].crash()
    world.begin("b", ("b",))
    assert world.agents["b"].coordinator.phase is Phase.IDLE
    assert world.agents["b"].admits is None
    world.agents["b"].withdraw()
    assert world.agents["b"].admits is None
    world.heal()
    assert world.is_done()


def test_of_two_the_lower_one_decides_alone() -> None:
    world = at(0)
    in_order(world, until=Phase.COMMIT)
    world.send("a")
    world.deliver(world.network.pop(0))
    world.agents["a"].work(0, "ok")
    world.agents["b"].crash()
    world.network.clear()
    settle(world, "a")
    assert world.agents["a"].admits == served(0)


def test_an_agent_that_has_not_voted_serves_on_though_nobody_is_heard() -> None:
    world = at(0)
    in_order(world, until=Phase.COMMIT)
    world.agents["a"].crash()
    world.agents["b"].give_up()
    assert world.agents["b"].admits == served(0)


def test_nothing_is_decided_before_every_agent_has_voted() -> None:
    world = at(0)
    in_order(world, until=Phase.COMMIT)
    for agent in world.agents.values():
        world.send("a")
        while world.network:
            world.deliver(world.network.pop(0))
        assert world.agents["a"].coordinator.phase is Phase.COMMIT
        agent.work(0, "ok")
    world.send("a")
    while world.network:
        world.deliver(world.network.pop(0))
    assert world.agents["a"].coordinator.phase is Phase.DECIDE


def test_a_vote_outlives_the_agent_that_gave_it() -> None:
    """Its mirror is still at the old version, and it may not serve that any more."""
    world = at(0)
    in_order(world, until=Phase.DECIDE)
    voter = world.agents["b"]
    voter.crash()
    voter.start()
    assert voter.mirror == served(0)
    voter.rejoin()
    assert voter.admits is None


def test_a_decision_outlives_the_coordinator_that_wrote_it() -> None:
    world = at(0)
    in_order(world, until=Phase.TEACH)
    world.send("a")
    for message in world.network:
        if isinstance(message, Asked) and message.agent == "b":
            world.deliver(message)
    world.network.clear()
    assert world.agents["b"].admits == served(1)
    for agent in world.agents.values():
        agent.crash()
    world.agents["a"].start()  # and nobody else, who could tell it
    world.begin("a", ())
    settle(world, "a")
    assert world.agents["a"].disk.serves == served(1)
