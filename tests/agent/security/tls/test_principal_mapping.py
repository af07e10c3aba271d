"""The cases of Kafka's SslPrincipalMapperTest, and Java's treatment of references."""

from __future__ import annotations

import pytest

from agent.security.tls.principal_mapping import NoMatchingRuleError, PrincipalMapper
from core.errors import InvalidInputError

_RULES = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L,"
    " RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,"
    " RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U, RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U, DEFAULT"
)


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ("CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        ("CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        ("cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME"),
        ("cN=duke,OU=JavaSoft,O=Sun Microsystems", "DUKE"),
        ("OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
    ],
)
def test_the_first_matching_rule_names_the_user(subject: str, name: str) -> None:
    assert PrincipalMapper(_RULES).name_of(subject) == name


@pytest.mark.parametrize(
    ("rules", "subject", "name"),
    [
        (r"RULE:^CN=((\\, *|\w)+)(,.*|$)/$1/,DEFAULT", r"CN=Tkac\, Adam,OU=ITZ", r"Tkac\, Adam"),
        ("  RULE:([A-Z]*)/$1/U   ,RULE:([a-z]+)/$1-/,   DEFAULT  ", "abc", "abc-"),
        (",   , RULE:x/y/,,,DEFAULT, ,   ", "z", "z"),
        ("RULE:.*/x/", "abc", "xx"),  # Java replaces the empty match at the end as well
        ("RULE:(a)(b)/$2$12$3/", "ab", "ba2$3"),
        (r"RULE:(a)/\$1$1/", "a", "$1a"),
        ("RULE:a(.)/$0-$01/", "ab", "ab-b"),
        (r"RULE:a/b\/c/", "a", "b/c"),
    ],
)
def test_rules_are_split_and_applied_as_in_kafka(rules: str, subject: str, name: str) -> None:
    assert PrincipalMapper(rules).name_of(subject) == name


@pytest.mark.parametrize(
    "rules",
    [
        "default",
        "DEFAULT/L",
        "RULE:CN=(.*?),OU=ServiceUsers.*/$1",
        "rule:^CN=(.*?),OU=ServiceUsers.*$/$1/",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L/U",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/LU",
        "RULE:(?=a)/x/",
        "RULE:a/$1/",
        "RULE:(a)/$/",
    ],
)
def test_a_wrong_rule_is_rejected_when_the_agent_starts(rules: str) -> None:
    with pytest.raises(InvalidInputError, match="setting ssl_principal_mapping_rules"):
        PrincipalMapper(rules)


def test_a_subject_without_a_rule_has_no_name() -> None:
    with pytest.raises(NoMatchingRuleError, match="CN=a"):
        PrincipalMapper("RULE:^OU=(.*)$/$1/").name_of("CN=a")
    with pytest.raises(NoMatchingRuleError):
        PrincipalMapper("").name_of("CN=a")


def test_a_hostile_subject_does_not_delay_a_match() -> None:
    """A backtracking engine would need exponential time."""
    with pytest.raises(NoMatchingRuleError):
        PrincipalMapper("RULE:^(a+)+$/$1/").name_of("a" * 50_000 + "!")
