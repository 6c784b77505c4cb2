"""The frame of a report's HTML page and its style, for screens and paper."""

from string import Template

STYLE = """
:root {
  color-scheme: light dark;
  --text: #1c2026; --quiet: #5b6472; --line: #d9dde3; --paper: #ffffff;
  --shade: #f4f6f8; --accent: #0060a0;
}
@media (prefers-color-scheme: dark) {
  :root {
    --text: #e4e7eb; --quiet: #a2abb8; --line: #3a414b; --paper: #16191d;
    --shade: #1f2429; --accent: #7cc0f0;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2.5rem 1.25rem 4rem; max-width: 62rem;
  color: var(--text); background: var(--paper);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
}
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 1rem; text-wrap: balance; }
h2 {
  font-size: 1.2rem; margin: 2.75rem 0 .75rem; padding-top: .6rem;
  border-top: 1px solid var(--line);
}
p, ul { margin: .5rem 0; max-width: 46rem; overflow-wrap: anywhere; }
dl {
  display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1.25rem;
  margin: 1rem 0;
}
dt { color: var(--quiet); }
dd { margin: 0; overflow-wrap: anywhere; }
.quiet, caption { color: var(--quiet); font-size: .875rem; }
.wide { overflow-x: auto; margin: .75rem 0; }
table {
  border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums;
}
caption { padding-top: .6rem; line-height: 1.5; text-align: left; }
th, td {
  padding: .3rem .9rem .3rem 0; vertical-align: top; white-space: nowrap;
  border-bottom: 1px solid var(--line);
}
th { font-weight: 600; vertical-align: bottom; white-space: normal; }
td.text, td.code { text-align: left; white-space: normal; overflow-wrap: anywhere; }
td.text { min-width: 16rem; white-space: pre-wrap; }
pre, code, td.code {
  font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; font-size: .8125rem;
}
pre {
  padding: .75rem 1rem; background: var(--shade); border-radius: 6px;
  white-space: pre-wrap; overflow-wrap: anywhere; margin: .5rem 0;
}
figure { margin: 1rem 0; }
figure img {
  display: block; max-width: 100%; height: auto; background: #ffffff;
  border-radius: 6px;
}
figcaption { color: var(--quiet); font-size: .875rem; margin-top: .35rem; }
details { border-bottom: 1px solid var(--line); padding: .45rem 0; }
summary { cursor: pointer; color: var(--accent); overflow-wrap: anywhere; }
@media print {
  :root {
    color-scheme: light; --text: #000000; --quiet: #444444; --line: #bbbbbb;
    --paper: #ffffff; --shade: #f4f4f4; --accent: #000000;
  }
  body { max-width: none; padding: 0; font-size: 10pt; }
  table { font-size: 8pt; }
  th, td { padding-right: .5rem; }
  .wide { overflow: visible; }
  h2, summary { break-after: avoid; }
  figure, tr { break-inside: avoid; }
  details::details-content { content-visibility: visible; block-size: auto; }
}
"""

PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>$style</style>
</head>
<body>
<h1>$title</h1>
$body
</body>
</html>
""")
