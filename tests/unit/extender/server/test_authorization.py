"""Authorization of readers: cached, reviewed once, denied without an answer."""

import asyncio

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from extender.page.usage import PluginUsage
from extender.routes import Routes
from extender.server.authorization import (
    ALLOWED_SECONDS,
    CALLER,
    DENIED_SECONDS,
    MAX_CACHED,
    MAX_UNKNOWN_REVIEWS,
    Authorizer,
    Cache,
    Denied,
    Question,
    authorize,
    question_of,
)
from extender.server.limits import ConcurrencyLimit, limit_concurrency, respond
from extender.settings.configuration import Limits
from gpushare.errors import OutcomeUnknown, Unreachable
from localcluster.wait import patient
from tests.builders import pod
from tests.fakes.clock import FakeClock
from tests.unit.extender.scripted import PREFIX, Bench, bound, changed
from tests.waiting import eventually

ALL, OWN = Question("list"), Question("get", "default", "p")


class Reviews:
    """An API server's token reviews and access reviews."""

    def __init__(self):
        self.users = {"good": "alice"}
        self.may = {("alice", "list", "")}
        self.asked = []
        self.error = None
        self.go = asyncio.Event()
        self.go.set()
        self.go_unknown = asyncio.Event()
        self.go_unknown.set()

    async def request(self, method, path, *, body, seconds):
        self.asked.append((path.rpartition("/")[2], body["spec"]))
        await self.go.wait()
        if body["spec"].get("token", "good") not in self.users:
            await self.go_unknown.wait()
        if self.error is not None:
            raise self.error
        spec = body["spec"]
        if path.endswith("tokenreviews"):
            name = self.users.get(spec["token"], "")
            user = {"username": name, "uid": "u", "groups": ["g"], "extra": {"k": ["v"]}}
            status = {"authenticated": bool(name), "user": user if name else {}}
        else:
            wanted = spec.get("resourceAttributes", {})
            key = (spec["user"], wanted.get("verb", ""), wanted.get("namespace", ""))
            status = {"allowed": key in self.may}
        return msgspec.json.encode({"spec": spec, "status": status})


@pytest.fixture
async def reviews():
    return Reviews()


@pytest.fixture
def time():
    return FakeClock()


@pytest.fixture
def authorizer(reviews, time):
    return Authorizer(reviews, time)


async def status(authorizer, token, question=ALL):
    try:
        await authorizer.check(token, question)
    except Denied as err:
        return err.status
    return 200


async def test_callers_with_the_right_pass_and_others_get_its_name(authorizer, reviews):
    assert await status(authorizer, "good") == 200
    assert await status(authorizer, "bad") == 401
    assert await status(authorizer, "") == 401
    with pytest.raises(Denied, match="alice may not get pods in namespace default"):
        await authorizer.check("good", OWN)
    (access,) = [spec for kind, spec in reviews.asked if kind == "subjectaccessreviews"][:1]
    assert (access["uid"], access["groups"], access["extra"]) == ("u", ["g"], {"k": ["v"]})


@pytest.mark.parametrize("token", ["", "\udcff", "\u00fc"])
async def test_an_impossible_token_is_not_reviewed(authorizer, reviews, token):
    assert await status(authorizer, token) == 401
    assert reviews.asked == []


async def test_an_answer_is_cached_for_a_minute(authorizer, reviews, time):
    assert await status(authorizer, "good") == 200
    reviews.may.clear()
    time.now += ALLOWED_SECONDS - 1
    assert await status(authorizer, "good") == 200
    assert len(reviews.asked) == 2
    time.now += 2
    assert await status(authorizer, "good") == 403


async def test_a_denial_is_cached_for_less(authorizer, reviews, time):
    assert await status(authorizer, "good", OWN) == 403
    reviews.may.add(("alice", "get", "default"))
    assert await status(authorizer, "good", OWN) == 403
    time.now += DENIED_SECONDS + 1
    assert await status(authorizer, "good", OWN) == 200
    assert await status(authorizer, "late") == 401
    reviews.users["late"] = "alice"
    assert await status(authorizer, "late") == 401
    time.now += DENIED_SECONDS + 1
    assert await status(authorizer, "late") == 200


async def test_many_invented_tokens_evict_no_valid_one(authorizer, reviews):
    assert await status(authorizer, "good") == 200
    for number in range(MAX_CACHED + 1):
        assert await status(authorizer, f"guess-{number}") == 401
    reviews.error = Unreachable("gone")
    assert await status(authorizer, "good") == 200


async def test_equal_reviews_share_one_call(authorizer, reviews):
    reviews.go.clear()
    tasks = [asyncio.create_task(status(authorizer, "good")) for _ in range(20)]
    gone = asyncio.create_task(status(authorizer, "good"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    gone.cancel()  # a caller that hangs up does not cancel it for others
    reviews.go.set()
    assert await asyncio.gather(*tasks) == [200] * 20
    assert [kind for kind, _ in reviews.asked] == ["tokenreviews", "subjectaccessreviews"]


@pytest.mark.parametrize(
    "error", [Unreachable("down"), OutcomeUnknown("slow"), TimeoutError(), None]
)
async def test_without_an_answer_callers_are_denied_and_nothing_is_cached(
    authorizer, reviews, error
):
    reviews.error = error or msgspec.DecodeError("rubbish")
    assert await status(authorizer, "good") == 503
    reviews.error = None
    assert await status(authorizer, "good") == 200


async def test_cached_answers_work_while_the_api_server_is_down(authorizer, reviews):
    assert await status(authorizer, "good") == 200
    reviews.error = Unreachable("down")
    assert await status(authorizer, "good") == 200
    assert await status(authorizer, "good", OWN) == 503


@given(
    st.lists(
        st.tuples(st.integers(0, 2 * MAX_CACHED), st.floats(0, 100), st.floats(0, 100)),
        max_size=200,
    ),
    st.integers(1, 20),
)
def test_the_cache_returns_nothing_expired_and_is_bounded(puts, most):
    kept, now, wanted = Cache(most), 0.0, {}
    for key, wait, seconds in puts:
        now += wait
        kept.put(key, (key, now), now + seconds)
        wanted[key] = now + seconds
        assert len(kept._values) <= most
        for each, until in wanted.items():
            found = kept.get(each, now)
            assert found is None or (found[0] == each and now < until)


@pytest.mark.parametrize(
    ("path", "parts", "wanted"),
    [
        ("/healthz", {}, None),
        ("/readyz", {}, None),
        ("/version", {}, None),
        ("/metrics", {}, Question(path="/metrics")),
        ("/anything", {}, Question(path="/anything")),
        ("/gpushare-scheduler/inspect", {}, ALL),
        ("/gpushare-scheduler/inspect/n1", {"node": "n1"}, ALL),
        ("/gpushare-scheduler/what-if", {}, ALL),
        ("/gpushare-scheduler/changes", {}, ALL),
        ("/gpushare-scheduler/usage", {}, ALL),
        ("/gpushare-scheduler/explain/default/p", {"namespace": "default", "pod": "p"}, OWN),
        ("/gpushare-scheduler/gangs", {}, ALL),
        ("/gpushare-scheduler/gangs/ml", {"namespace": "ml"}, Question("list", "ml")),
    ],
)
def test_each_path_requires_the_right_to_what_it_shows(path, parts, wanted):
    assert question_of(path, parts) == wanted


def reading(bench, reviews):
    """A client of the pages that require a token, for one request at a time."""
    usage = PluginUsage(bench.kube, "gpushare-system", bench.time)
    routes = Routes(bench.cluster, bench.binder, list, limits=Limits(reading=1), usage=usage)
    app = routes.reading_app(authorize(Authorizer(reviews, bench.time)))
    return TestClient(TestServer(app))


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize(
    ("may", "named"),
    [
        ({("alice", "get", "default")}, {("default", "mine"), ("", "")}),
        ({("alice", "get", "default"), ("alice", "list", "")},
         {("default", "mine"), ("secret", "theirs")}),
    ],
)  # fmt: skip
async def test_explain_names_pods_of_other_namespaces_only_to_callers_that_may_list_them(
    reviews, may, named
):
    reviews.may = may
    bench = Bench(16)
    theirs = changed(bound("theirs", 12), {"namespace": "secret"})
    bench.add(bound("mine", 4), theirs, pod("p", 8))
    async with reading(bench, reviews) as client:
        answer = await client.get(f"{PREFIX}/explain/default/p", headers=bearer("good"))
        assert answer.status == 200
        (node,) = (await answer.json())["nodes"]
    pods = [*node["cards"][0]["pods"], *node["unplaced"]]
    assert {(each["namespace"], each["name"]) for each in pods} == named
    assert sorted(each["units"] for each in pods) == [4, 12]


@pytest.mark.parametrize("verb", ["gangs", "queue", "quota"])
async def test_what_is_known_of_a_namespace_is_for_callers_that_may_list_its_pods(reviews, verb):
    reviews.may = {("alice", "list", "default")}
    async with reading(Bench(16), reviews) as client:
        for page, status in ((f"{verb}/default", 200), (f"{verb}/secret", 403), (verb, 403)):
            answer = await client.get(f"{PREFIX}/{page}", headers=bearer("good"))
            assert answer.status == status
        # "?" and "/" in a name never become parts of a path.
        for page in (f"{verb}/default%2F..%2Fsecret", f"{verb}/default%3Fx"):
            answer = await client.get(URL(f"{PREFIX}/{page}", encoded=True), headers=bearer("good"))
            assert answer.status == 403


@pytest.mark.parametrize("page", ["changes", "usage?node=n"])
async def test_the_live_page_shows_the_cluster_only_to_callers_that_may_list_all_pods(
    reviews, page
):
    reviews.may = {("alice", "get", "default"), ("alice", "list", "default")}
    bench = Bench(16)
    bench.add(bound("theirs", 12))
    async with reading(bench, reviews) as client:
        for headers, status, says in (
            ({}, 401, "send a token"),
            (bearer("bad"), 401, "token"),
            (bearer("good"), 403, "may not list pods in all namespaces"),
        ):
            answer = await client.get(f"{PREFIX}/{page}", headers=headers)
            body = await answer.json()
            assert (answer.status, list(body)) == (status, ["Error"])
            assert says in body["Error"]


async def test_whoever_invents_tokens_takes_no_place_from_who_is_known(reviews):
    bench = Bench(16)
    reviews.may.add(("alice", "", ""))

    async def ask(client, token, page=f"{PREFIX}/inspect"):
        answer = await client.get(page, headers=bearer(token))
        return answer.status, answer.headers.get("Retry-After")

    async with reading(bench, reviews) as client, asyncio.timeout(patient(10)):
        assert await ask(client, "good") == (200, None)
        reviews.go_unknown.clear()
        waiting = {
            asyncio.create_task(ask(client, f"invented-{number}"))
            for number in range(MAX_UNKNOWN_REVIEWS + 12)
        }
        rejected = []
        while len(waiting) > MAX_UNKNOWN_REVIEWS:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            rejected += [task.result() for task in done]
        assert rejected == [(429, "1")] * 12
        for page in (f"{PREFIX}/inspect", "/metrics"):
            assert await ask(client, "good", page) == (200, None)
        bench.time.now += ALLOWED_SECONDS + 1  # expired, but known
        assert await ask(client, "good") == (200, None)
        reviews.go_unknown.set()
        assert {(await task)[0] for task in waiting} == {401}


async def test_every_request_releases_its_slot(reviews):
    async with reading(Bench(16), reviews) as client, asyncio.timeout(patient(10)):
        for _ in range(3):  # one that is not released would be the last
            for token, status in (("bad", 401), ("good", 200)):
                answer = await client.get(f"{PREFIX}/inspect", headers=bearer(token))
                assert answer.status == status


async def test_no_user_and_no_namespaces_service_accounts_take_all_slots(reviews):
    names = {"a": "system:serviceaccount:ml:a", "b": "system:serviceaccount:ml:b", "c": "carol"}
    reviews.users = names
    reviews.may = {(name, "list", "") for name in names.values()}
    limit, go = ConcurrencyLimit(Limits(reading=8)), asyncio.Event()

    waiting = []

    async def wait(request):
        waiting.append(request)
        await go.wait()
        return web.Response()

    checks = [
        respond(tuple, limit),
        authorize(Authorizer(reviews, FakeClock())),
        limit_concurrency(limit, lambda request: request[CALLER]),
    ]
    app = web.Application(middlewares=checks)
    app.router.add_get(f"{PREFIX}/inspect", wait, name="inspect")
    async with TestClient(TestServer(app)) as client, asyncio.timeout(patient(20)):

        def ask(token):
            headers = {"Authorization": f"Bearer {token}"}
            return asyncio.create_task(client.get(f"{PREFIX}/inspect", headers=headers))

        held = [ask("a"), ask("b")]
        await eventually(lambda: len(waiting) == len(held))
        assert (await ask("b")).status == 429
        held.append(ask("c"))
        await eventually(lambda: len(waiting) == len(held))
        go.set()
        assert [(await each).status for each in held] == [200] * 3
