"""what-if's answer as text."""

from gpushare.answers.what_if import Answer, GangOutlook, PlaceView, QuotaOutlook
from gpushare.quota.reasons import WRONG_QUOTA
from gpusharectl.what_if.lines import draw


def answer(quota: QuotaOutlook, gang: GangOutlook | None = None) -> Answer:
    places = [PlaceView("n", [0], ["GPU-0"], 2)]
    return Answer(False, 2, 2, places, {}, None, [], unit_mib=1024, gang=gang, quota=quota)


def test_what_the_quota_lacks_is_said_with_where_there_is_room():
    lines = [line.plain for line in draw(answer(QuotaOutlook("team", 4, 16)))]
    assert lines[0] == "not within the quota"
    assert lines[1] == (
        "The quota of namespace team leaves 4 GiB now, and 16 GiB are requested "
        "(gpushare quota -n team)."
    )
    assert lines[2:4] == ["there is room for 2 of 2:", "  n, GPU 0: 2"]


def test_a_quota_that_cannot_be_read_is_said():
    lines = [line.plain for line in draw(answer(QuotaOutlook("team", 0, 16, WRONG_QUOTA.text)))]
    assert lines[1] == f"nothing of namespace team is placed now: {WRONG_QUOTA.text}"


def test_a_gang_beyond_the_quota_does_not_fit():
    gang = GangOutlook("g", "labels", 2, "", "", "All 2 would start.")
    lines = [line.plain for line in draw(answer(QuotaOutlook("team", 4, 16), gang))]
    assert lines[0] == "fits as a whole: no"
    assert lines[1].startswith("The quota of namespace team leaves 4 GiB now")
    assert lines[2] == "With more quota: All 2 would start."
