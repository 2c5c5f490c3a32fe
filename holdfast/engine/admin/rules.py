"""The operator's standing rules: list them, add one, revoke one."""

from holdfast.core.approval import rules
from holdfast.core.approval.patterns import parse_pattern
from holdfast.core.intents import Principal
from holdfast.core.types import Value
from holdfast.engine.life.gateway_state import StandingRules
from holdfast.engine.permission import check_admin
from holdfast.engine.runs.approvals import Audit
from holdfast.errors import Refused
from holdfast.journal.audit import entry_of


class RuleAdmin(Value):
    """The operator's standing rules."""

    _standing: StandingRules
    _audit: Audit

    def rules(self, by: Principal) -> dict[str, str]:
        """Return the name and the text of each rule."""
        check_admin(by)
        return {name: rules.describe(rule) for name, rule in self._standing.named().items()}

    async def allow(self, by: Principal, pattern: str) -> tuple[str, str]:
        """Add the rule that `pattern` stands for; refused with `invalid_pattern`."""
        check_admin(by)
        rule = parse_pattern(pattern)
        await self._audit(entry_of(by, "rule.allowed", rule=rules.describe(rule)))
        return await self._standing.allow(rule, by.owner), rules.describe(rule)

    async def revoke(self, by: Principal, name: str) -> None:
        """Revoke a rule; refused with `rule_not_found`."""
        check_admin(by)
        await self._audit(entry_of(by, "rule.revoked", rule=name))
        if not await self._standing.revoke(name, by.owner):
            raise Refused("rule_not_found", f"There is no rule {name}.")
