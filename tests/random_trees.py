"""Random filter trees over the stores of ``query_stores``."""

from __future__ import annotations

from hypothesis import strategies as st
from query_reference import all_of, any_of, leaf, negated
from query_stores import TAGS
from small_stores import START_MS

_TEXTS = {
    "tags": st.sampled_from([*TAGS, "nobody"]),
    "keys": st.sampled_from(["hot", "order-Aa", "order-BB", "hot order-3", "order-7", " ", "键"]),
    "topic": st.sampled_from(["orders", "batch", "orderly", "nobody"]),
    "brokerName": st.sampled_from(["store-a", "store-b", "nobody"]),
}
_NUMBERS = {
    "queueId": st.integers(-1, 3),
    "queueOffset": st.integers(-1, 120),
    "commitLogOffset": st.integers(-1, 80_000),
    "storeSize": st.integers(150, 420),
    "storeTimestamp": st.integers(START_MS, START_MS + 110_000).map(lambda ms: ms * 1000),
}
_CONDITIONS = st.one_of(
    *(st.builds(leaf, st.sampled_from(["eq", "eqNullSafe", "ge", "startsWith"]), st.just(name),
                values) for name, values in _TEXTS.items()),
    *(st.builds(leaf, st.sampled_from(["eq", "eqNullSafe", "lt", "le", "gt", "ge"]),
                st.just(name), values) for name, values in _NUMBERS.items()),
    *(st.builds(leaf, st.just("in"), st.just(name), st.lists(st.none() | values, min_size=1))
      for name, values in {**_TEXTS, **_NUMBERS}.items()),
    st.builds(leaf, st.sampled_from(["isNull", "isNotNull"]),
              st.sampled_from(["tags", "keys", "uniqKey", "storeSize"])),
)
#: Trees of up to six conditions, as the bridge writes them.
TREES = st.recursive(
    _CONDITIONS,
    lambda inner: st.one_of(
        st.builds(all_of, inner, inner), st.builds(any_of, inner, inner),
        st.builds(negated, inner)),
    max_leaves=6,
)
