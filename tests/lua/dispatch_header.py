"""What a script of the dispatch path says of itself, compared with what it does.

These scripts build key names from one prefix, so what is checked of a key is its family (`ring` of
``prefix .. "ring:" .. queue``): it stands in the table of keys, with the type of the command.

Weakness: it reads the house style and not Lua, as `script_header` does.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

from tests.lua.script_header import Header, _form_problems, _index_problems, _parts, split

_FIELD = re.compile(r"(\w+) = (?:tonumber\()?ARGV\[(\d+)\]")
_LOCAL = re.compile(r"^\s*(?:local )?([\w, ]+) = (.+)$", re.MULTILINE)
_FAMILY = re.compile(r'prefix \.\. (?:"(\w+)|(list|back|order)_name\()')
#: By the function that makes their names.
_NAMED = {"list": "lane", "back": "back", "order": "ready"}
_FOR = re.compile(r"^\s*for (.+?) do", re.MULTILINE)

#: Commands by the type that they are for; those of any type are not listed.
_TYPE_OF = {
    "hash": {"HGET", "HSET", "HDEL", "HMGET", "HINCRBY", "HEXISTS", "HLEN", "HKEYS"}
    | {"HSETNX", "HGETALL"},
    "zset": {
        "ZADD",
        "ZREM",
        "ZSCORE",
        "ZMSCORE",
        "ZRANK",
        "ZCARD",
        "ZCOUNT",
        "ZRANGE",
        "ZPOPMIN",
        "COPY",
    }
    | {"ZRANGEBYSCORE", "ZREMRANGEBYSCORE"},
    "list": {"LPOP", "RPUSH", "LINDEX", "LREM", "LLEN", "LMOVE", "LSET"},
    "set": {"SADD", "SREM", "SCARD", "SISMEMBER", "SRANDMEMBER"},
    "string": {"INCR", "GET", "GETEX", "MGET", "SET"},
    "stream": {"XADD"},
    "": {"EXISTS", "DEL", "UNLINK", "PEXPIRE", "PTTL"},
}
#: Names of keys that a function is given.
_GIVEN = {
    "prefix .. list": {"lane", "back"},
    "prefix .. order": {"ready", "shelf"},
    "prefix .. from": {"ready", "shelf"},
    "prefix .. to": {"ready", "shelf"},
    "prefix .. place": {"ring", "full", "out", "tags"},
    "clock_key": {"clock"},
    "bindings": {"_kombu.binding.EXCHANGE"},
    "plain": {"QUEUE"},
    "unpack(later)": {"later"},
    "unpack(starts)": {"window", "starts"},
    "unpack(windows)": {"window"},
    "name": {"declared"},
    "unpack(names)": {"declared"},
    "unpack(some)": {"waited"},
    "unpack(bells)": {"bell", "left"},
}
#: What a loop may end with beside constants and readings with a LIMIT.
_ENDS = {
    "#ARGV": "arguments, which Python sends in batches",
    "want + 4 * #turns.queues": "arguments",
    "#rounds.asked": "arguments",
    "#turns.queues": "arguments",
    "#all_queues": "arguments",
    "#queues": "arguments",
    "turns.looks": "constants",
    "turns.moves + 1": "a constant",
    "looked": "a constant, or fewer",
    "#fields": "the queues in which one tenant waits",
    "#parts": "of one reading",
    "#parts + PASSED_AT_MOST": "of one reading, and a constant",
    "#scores": "of one reading",
    "#waiting": "the queues, once in the life of a memory",
    "#some": "a constant, or fewer",
    "#limits": "of one task",
    "first_queue - 1": "arguments, which Python sends in batches",
    "#kinds": "arguments",
    "#keys": "of the limits of one task, or of those that ended",
    "#places": "of the limits of one task",
    "#heads": "a constant, or fewer",
    "#tags": "a constant, or fewer",
    "TASKS_AT_MOST + PLACES_AT_MOST": "constants",
    "#ended": "the ends of one call, which Python sends in batches",
    "#given": "the tasks of one claim",
    "#changed": "of the limits of one task",
    "#names": "a constant, or fewer",
    "#met.order": "what one call started and refused, at most",
    "#ARGV - 1": "arguments, which Python sends in batches",
}
#: Loops over the words of a text that is short: the leases of one answer, the limits of one task.
_WORDS = {
    'lease in string.gmatch(last_leases, "%S+")',
    'key in string.gmatch(keys, "[^,]+")',
    'each in string.gmatch(keys, "[^,]+")',
    'key in string.gmatch("," .. limits, ",([^|]+)|")',
    'word in string.gmatch(words, "[^,]+")',
    'key in string.gmatch(ended[index], ",([^,]+)")',
    'word in string.gmatch(string.sub(lane, 3), "[^,]+")',
    'kind, mean in string.gmatch(kept, "([^ ~]*)~(%d+)")',
    'known, ms in string.gmatch(rules.kept_took, "([^ ~]*)~(%d+)")',
    "starts, period_ms in windows_of(limit.rates)",
    "starts, period_ms in windows_of(limit.throttle)",
}


def problems_of(name: str, text: str, types: Mapping[str, str]) -> list[str]:
    """Return what is wrong with the verb `name`; `types` are those of the key table, by family."""
    header, body = split(text)
    if header is None or header.title != name:
        return [f"expected a header that begins with '{name}: ', got: {text.splitlines()[0]!r}"]
    found = _form_problems(text, body)
    keys = [(entry.index, entry.name, entry.type) for entry in header.of("KEYS")]
    if keys != [(1, "prefix", "str")]:
        found.append(f"KEYS: expected the prefix alone, got: {keys}")
    arguments = header.of("ARGV")
    if [entry.index for entry in arguments] != list(range(1, len(arguments) + 1)):
        found.append(f"ARGV: expected 1, 2, 3 ..., got: {[e.index for e in arguments]}")
    found += _index_problems(header, body)
    called = _names_of_arguments(body)
    for entry in arguments:
        number = f"tonumber(ARGV[{entry.index}])"
        if not entry.rest and not called[entry.index] & {entry.name, f"known_{entry.name}"}:
            found.append(f"ARGV[{entry.index}] is {entry.name!r}, not {called[entry.index]}")
        if entry.type == "int" and number not in body:
            found.append(f"ARGV[{entry.index}] {entry.name} is an int: expected {number}")
    if not header.returns:
        found.append("expected a line 'Returns ...' in the header")
    found += _code_problems(header, body)
    return found + _body_problems(body, types)


def include_problems(name: str, text: str, types: Mapping[str, str]) -> list[str]:
    """Return what is wrong with the piece `name`."""
    header, body = split(text)
    if header is None or not header.purpose:
        return [f"expected a header comment that says what {name} is for"]
    found = _form_problems(text, body)
    if re.search(r"\b(KEYS|ARGV)\b", body):
        found.append("expected parameters, got: KEYS or ARGV in an included piece")
    for line in body.splitlines():
        if line and not line.startswith((" ", "local ", "end")):
            found.append(f"expected only local functions and constants, got: {line!r}")
    if header.codes:
        found += _code_problems(header, body)
    return found + _body_problems(body, types)


def _code_problems(header: Header, body: str) -> list[str]:
    returned = {int(code) for code in re.findall(r"\breturn (-?\d+)\b", body)}
    for pair in re.findall(r"\breturn [^\n]* and (\d+) or (\d+)", body):
        returned |= set(map(int, pair))
    if returned == set(header.codes):
        return []
    return [f"codes: documented {sorted(header.codes)}, returned {sorted(returned)}"]


def calls(body: str) -> Iterator[list[str]]:
    """Every call of Redis: the command without quotes, then its arguments as they are written."""
    for match in re.finditer(r"redis\.call\(", body):
        depth, end = 1, match.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(body[end], 0) if not _in_text(body, end) else 0
            end += 1
        command, *arguments = _parts(" ".join(body[match.end() : end - 1].split()))
        yield [command.strip('"'), *arguments]


def _in_text(body: str, position: int) -> bool:
    line = body[body.rfind("\n", 0, position) + 1 : position]
    return line.count('"') % 2 == 1


def _names_of_arguments(body: str) -> defaultdict[int, set[str]]:
    names: defaultdict[int, set[str]] = defaultdict(set)
    for name, index in _FIELD.findall(body):
        names[int(index)].add(name)
    for targets, values in _LOCAL.findall(body):
        for target, value in zip(targets.split(","), _parts(values), strict=False):
            match = re.fullmatch(r"(?:tonumber\()?ARGV\[(\d+)\]\)?", value.strip())
            if match:
                names[int(match.group(1))].add(target.strip())
    return names


def _body_problems(body: str, types: Mapping[str, str]) -> list[str]:
    families = {name: set(each) for name, each in _GIVEN.items()}
    for targets, values in _LOCAL.findall(body):
        for target, value in zip(targets.split(","), _parts(values), strict=False):
            match = _FAMILY.match(value.strip())
            if match:
                family = match.group(1) or _NAMED[match.group(2)]
                families.setdefault(target.strip(), set()).add(family)
    found = []
    for command, *arguments in calls(body):
        if command == "TIME":
            continue
        match = _FAMILY.match(arguments[0])
        used = (
            {match.group(1) or _NAMED[match.group(2)]}
            if match
            else families.get(arguments[0], set())
        )
        wanted = [type_ for type_, commands in _TYPE_OF.items() if command in commands]
        if not used:
            found.append(f"{command} {arguments[0]}: expected a key of a known family")
        elif not wanted:
            found.append(f"{command}: not a command that these scripts use")
        elif wanted != [""] and wanted[0] not in {types.get(family) for family in used}:
            found.append(f"{command} {arguments[0]}: no {wanted[0]} in the table of keys")
        if not used <= set(types):
            found.append(f"{command} {arguments[0]}: not in the table of keys")
        if command == "ZRANGEBYSCORE" and '"LIMIT"' not in " ".join(arguments):
            found.append(f"ZRANGEBYSCORE {arguments[0]}: reads without a bound")
        one = arguments[1:2] == arguments[2:3]
        if command == "ZRANGE" and not one and not re.fullmatch(r"0|[1-9]\d*", arguments[2]):
            found.append(f"ZRANGE {arguments[0]}: reads without a bound")
    return found + _loop_problems(body)


def _loop_problems(body: str) -> list[str]:
    limited = {
        target
        for target, call in re.findall(r"local (\w+) = (redis\.call\([^;]*?\)(?:\[\d\])?\n)", body)
        if '"LIMIT"' in call
    }
    found = []
    for loop in _FOR.findall(body):
        if loop in _WORDS:
            continue
        parts = _parts(loop.partition(" = ")[2])
        end = parts[1] if len(parts) > 1 else ""
        constant = re.fullmatch(r"[A-Z_]+", end)
        if not constant and end not in _ENDS and end.removeprefix("#") not in limited:
            found.append(f"a loop's end has no bound that is known: {loop!r}")
    return found
