"""Every module of cases: to import this one registers them all in `cases.CASES`."""

from tests.compare import (  # noqa: F401
    cases_of_administration,
    cases_of_consumer_groups,
    cases_of_data,
    cases_of_group_offsets,
    cases_of_groups,
    cases_of_produce,
    cases_of_settings,
    cases_of_transactional_writes,
    cases_of_transactions,
    cases_of_transactions_described,
)
