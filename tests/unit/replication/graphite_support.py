"""Three sections of rollup rules, as configuration and as values."""

from __future__ import annotations

from engine.config.graphite import GraphitePattern, GraphiteRollup, Retention, RuleType

SECTIONS = """
<graphite_rollup>
    <version_column_name>Version</version_column_name>
    <pattern>
        <regexp>click_cost</regexp>
        <function>any</function>
        <retention><age>0</age><precision>3600</precision></retention>
    </pattern>
    <default>
        <function>avg</function>
        <retention><age>0</age><precision>60</precision></retention>
        <retention><age>3600</age><precision>300</precision></retention>
    </default>
</graphite_rollup>
<typed>
    <path_column_name>P</path_column_name>
    <time_column_name>T</time_column_name>
    <value_column_name>V</value_column_name>
    <version_column_name>Ver</version_column_name>
    <pattern><rule_type>plain</rule_type><regexp>abc</regexp><function>max</function></pattern>
    <pattern>
        <rule_type>tag_list</rule_type>
        <regexp>n;b=2;a=1</regexp>
        <function>quantile(0.9)</function>
        <retention><age>0</age><precision>10</precision></retention>
    </pattern>
    <pattern>
        <rule_type>tagged</rule_type>
        <regexp>xyz</regexp>
        <retention><age>10</age><precision>20</precision></retention>
        <retention><age>100</age><precision>200</precision></retention>
    </pattern>
    <default><function>sum</function><retention><age>0</age><precision>60</precision></retention></default>
</typed>
<bare><default><function>avg</function></default></bare>
"""

ROLLUPS = {
    "graphite_rollup": GraphiteRollup(
        version_column="Version",
        patterns=(GraphitePattern(RuleType.ALL, "click_cost", "any", (Retention(0, 3600),)),),
        default=GraphitePattern(function="avg", retentions=(Retention(0, 60), Retention(3600, 300))),
    ),
    "typed": GraphiteRollup(
        "P",
        "T",
        "V",
        "Ver",
        patterns=(
            GraphitePattern(RuleType.PLAIN, "abc", "max"),
            GraphitePattern(RuleType.TAG_LIST, "n;b=2;a=1", "quantile(0.9)", (Retention(0, 10),)),
            GraphitePattern(RuleType.TAGGED, "xyz", "", (Retention(10, 20), Retention(100, 200))),
        ),
        default=GraphitePattern(function="sum", retentions=(Retention(0, 60),)),
    ),
    "bare": GraphiteRollup(default=GraphitePattern(function="avg")),
}

COLUMNS = {
    "graphite_rollup": "(Path String, Time DateTime, Value Float64, Version UInt32)",
    "typed": "(P String, T DateTime, V Float64, Ver UInt32)",
    "bare": "(Path String, Time DateTime, Value Float64, Timestamp UInt32)",
}
