// SPDX-License-Identifier: Apache-2.0
// The fixed parts of a page: its frame, style sheet and script. A page loads nothing from elsewhere, so it still works
// in ten years and on a machine without a network. Colours are those of Okabe and Ito, which people with any kind of
// colour vision can tell apart (jfly.uni-koeln.de/color); shapes and letters repeat what colours say.
#pragma once

#include <cmath>
#include <comp/core/error.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace comp::detail {

inline constexpr std::string_view html_style = R"css(
:root{color-scheme:light dark;--bg:#f6f7f9;--card:#fff;--ink:#1a2129;--soft:#5b6673;--line:#dfe4ea;--accent:#0067a3;
--p1:#e3e7ec;--p1i:#46515d;--pt:#009e73;--pb:#0072b2;--pbi:#fff;--p0:#e69f00;--pe:#cc79a7;--pE:#d55e00;--pk:#f0e442;--p8:#56b4e9;
--p4:#882255;--pn:#44aa99;--good:#0072b2;--bad:#b34700}
@media (prefers-color-scheme:dark){:root{--bg:#12161b;--card:#1b2128;--ink:#e8ecf1;--soft:#9aa6b3;--line:#303943;
--accent:#6cbcf0;--p1:#39434e;--p1i:#c3ccd6;--pb:#2f8fd0;--pbi:#001521;--good:#6cbcf0;--bad:#f0a060}}
*{box-sizing:border-box}html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:1120px;margin:0 auto;padding:28px 20px 60px}
h1{font-size:clamp(1.5rem,4vw,2.2rem);line-height:1.2;margin:.2em 0 .4em;letter-spacing:-.01em;text-wrap:balance}
h2{font-size:1.15rem;margin:0 0 .3em}p{margin:.3em 0 .9em;max-width:75ch}.soft{color:var(--soft)}
.lead{font-size:1.05rem}.eyebrow{color:var(--accent);font-weight:600;margin:0}
.about{font-size:.86rem;max-width:none;overflow-wrap:anywhere}.about span{display:inline-block;max-width:100%;margin-right:1.1em}
pre{background:var(--bg);border:1px solid var(--line);border-radius:8px;padding:9px 12px;margin:.2em 0 1em;white-space:pre-wrap;overflow-wrap:anywhere;font-size:.84rem}
ul{margin:.2em 0 .9em;padding-left:1.2em}li{margin:.25em 0;overflow-wrap:anywhere}
section{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:20px 22px;margin:18px 0}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(160px,1fr));gap:12px;margin:20px 0}
.tile{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:14px 16px}
.tile b{display:block;font-size:1.65rem;line-height:1.2;font-variant-numeric:tabular-nums}
.tile span{display:block;color:var(--soft);font-size:.86rem}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;margin:.2em 0 1em;font-size:.88rem;color:var(--soft)}
.legend span{display:inline-flex;align-items:center;gap:6px}.legend svg{flex:none}
.strip{display:flex;flex-wrap:wrap;gap:10px 12px;align-items:flex-end}
.scope{min-width:0;max-width:100%}.scope>em{display:block;font-style:normal;font-size:.76rem;color:var(--soft);
white-space:nowrap;overflow:hidden;text-overflow:ellipsis;max-width:var(--w,100%);min-width:0}
.cells{display:flex;flex-wrap:wrap;gap:2px}
.c{width:26px;height:34px;border-radius:5px;display:grid;place-items:center;font:600 13px/1 ui-monospace,"DejaVu Sans Mono",monospace;cursor:default}
.mid .c{width:16px;height:24px;font-size:10px;border-radius:3px}
.small .strip{gap:8px 8px}.small .cells{gap:1px}.small .c{width:8px;height:16px;border-radius:2px;font-size:0}
.f1{background:var(--p1);color:var(--p1i)}.ft{background:var(--pt);color:#00211a}.fb{background:var(--pb);color:var(--pbi)}
.f0{background:var(--p0);color:#221800}.fe{background:var(--pe);color:#2a0f1e}.fE{background:var(--pE);color:#260f00}
.fk{background:var(--pk);color:#262400}.f8{background:var(--p8);color:#001c2e}.f4{background:var(--p4);color:#fff}.fn{background:var(--pn);color:#00211a}
.c:hover,.c:focus{outline:2px solid var(--ink);outline-offset:1px}
#tip{position:absolute;z-index:9;pointer-events:none;max-width:min(340px,92vw);background:var(--ink);color:var(--bg);padding:8px 11px;border-radius:8px;
font-size:.86rem;overflow-wrap:anywhere;box-shadow:0 4px 18px #0005}#tip[hidden]{display:none}
.scroll{overflow-x:auto;max-width:100%}.tall{max-height:32rem;overflow:auto;scroll-padding-top:2.5rem}
table{border-collapse:collapse;width:100%;font-size:.9rem;font-variant-numeric:tabular-nums}
th{font-weight:600;text-align:left;color:var(--soft);font-size:.8rem;border-bottom:1px solid var(--line);padding:6px 10px;white-space:nowrap;vertical-align:bottom}
.tall thead th{position:sticky;top:0;background:var(--card)}
td{white-space:nowrap;border-bottom:1px solid var(--line);padding:7px 10px;vertical-align:middle}tr:last-child td{border-bottom:0}
td.n,th.n{text-align:right;white-space:nowrap}td.t{white-space:normal;overflow-wrap:anywhere;min-width:10rem}tr.win td{background:color-mix(in srgb,var(--accent) 9%,transparent)}
td .soft{font-size:.84em}td.m{white-space:normal;min-width:14rem;overflow-wrap:anywhere}td.e{white-space:normal;overflow-wrap:break-word;min-width:5.5rem;max-width:18rem}
.js tr.far{display:none}.js tr.far.near{display:table-row}th button{all:unset;cursor:pointer;font:inherit}th button:focus-visible{outline:2px solid var(--accent)}
th[aria-sort=ascending] button::after{content:" \2191"}th[aria-sort=descending] button::after{content:" \2193"}
.c.part{cursor:pointer}
.p{display:inline-block;border-radius:4px;padding:1px 7px;font-size:.82rem;font-weight:600;white-space:nowrap}
.range{position:relative;height:14px;min-width:120px;background:var(--bg);border-radius:3px;overflow:hidden}
.range b{position:absolute;left:0;top:0;height:14px;background:var(--accent);opacity:.45;border-right:2px solid var(--ink)}
.range i{position:absolute;z-index:1;top:5px;height:4px;background:var(--ink);min-width:2px}
.plan svg{display:block;width:130px;height:12px;border-radius:3px}.plan code{font-size:.78rem}
.plan small{color:var(--soft);display:block;white-space:normal}.cards th{white-space:normal}.cards .range{margin-top:4px}.cards .plan svg{margin:5px 0 2px}
.chart{width:100%;max-width:760px;height:auto;display:block}.chart text{fill:var(--soft);font-size:10px}.chart .axis{stroke:var(--line)}
.charts{display:grid;grid-template-columns:1fr 1fr;gap:14px}.charts .chart text{font-size:13px}
.line{fill:none;stroke-width:1.8}.line.fp32{stroke:var(--ink);stroke-dasharray:5 3}.line.low{stroke:var(--accent)}.band{fill:var(--p0);fill-opacity:.22;stroke:none}
.band.key-band{stroke:var(--p0);stroke-opacity:.4;stroke-width:11}
.times th[scope=row]{font-weight:400;color:inherit;font-size:inherit;white-space:normal;overflow-wrap:anywhere;padding:7px 10px;vertical-align:middle}
.times .stack{height:13px;min-width:130px;margin:0;border-radius:3px}
.chart .limit{stroke:var(--bad);stroke-dasharray:5 4;stroke-width:1.2}.chart text.limit-text{fill:var(--bad);stroke:none}
.mk{stroke-width:1.5}.mk.ok{fill:var(--good);stroke:var(--card)}.mk.rej{fill:#e69f00;stroke:var(--ink);stroke-width:.8}.mk.cut{fill:none;stroke:var(--soft)}.mk.open{fill:var(--card);stroke:var(--bad)}.bar{stroke:var(--soft);stroke-width:1.3;fill:none}
.mk.bad{stroke:var(--bad);fill:none;stroke-width:2}.mk.base{fill:var(--ink);stroke:var(--card)}.ring{fill:none;stroke:var(--ink);stroke-width:1.4}
.chart g[tabindex]:focus,.chart g:hover{outline:none}.chart g:focus .mk,.chart g:hover .mk{stroke:var(--ink)}
.stack{display:flex;height:26px;border-radius:6px;overflow:hidden;background:var(--line);margin:10px 0}
.stack i{display:block;min-width:2px}.s0{background:#8d98a5}.s1{background:#0072b2}.s2{background:#56b4e9}.s3{background:#e69f00}.s4{background:#009e73}
.key{display:inline-block;width:12px;height:12px;border-radius:3px;margin-right:7px;vertical-align:-1px}
input[type=search]{font:inherit;color:inherit;background:var(--bg);border:1px solid var(--line);border-radius:8px;padding:8px 12px;width:100%;max-width:26rem;margin-bottom:8px}
:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
dl{display:grid;grid-template-columns:max-content 1fr;gap:4px 18px;margin:0}dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
.warn{border-left:4px solid #e69f00;padding-left:14px}
@media (max-width:600px){main{padding:16px 12px 40px}section{padding:16px 14px}dl{grid-template-columns:1fr}dt{margin-top:6px}
.c{width:24px;height:30px}.chart text,.charts .chart text{font-size:17px}.charts{grid-template-columns:1fr}.wide{display:none}
.tile:last-child:nth-child(odd){grid-column:1/-1}.tiles{grid-template-columns:1fr 1fr}.tile b{font-size:1.35rem}th,td{padding-left:5px;padding-right:5px}
td.t,td.m{min-width:6.5rem}.plan svg{width:70px}.times .stack{min-width:70px}th,th.n,td{white-space:normal}td.n{white-space:nowrap}td.e{min-width:0}}
@media (max-width:900px){
.cards thead{position:absolute;clip-path:inset(50%);width:1px;height:1px;overflow:hidden}.cards tr{display:grid;grid-template-columns:1fr 1fr;padding:8px 0;border-bottom:1px solid var(--line)}
.cards tr.win{background:color-mix(in srgb,var(--accent) 9%,transparent)}.cards td,.cards tr.win td{background:none;border:0;padding:3px 8px;text-align:left}.cards td.t{font-weight:600}.cards td .soft,.cards small{font-weight:400}.cards td[data-l]::before{content:attr(data-l);display:block;color:var(--soft);font-size:.78rem;font-weight:400}}
@media print{:root{--bg:#fff}body{font-size:11px}section,.tile{break-inside:avoid;border-color:#bbb}.tall{max-height:none;overflow:visible}
.tall section{break-inside:auto}input,#tip{display:none}*{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
)css";

// The script shows tooltips for cells and marks, by pointer and by keyboard (arrow keys move along the cells), sorts
// tables by a click on a column's head, and filters the operator table by words or by a range of operators (which a
// click on a cell of several operators fills in). Without the script nothing is lost: the tooltips' texts are
// aria-labels, and the tables are complete.
inline constexpr std::string_view html_script = R"js(
(()=>{const tip=document.getElementById('tip');
const show=e=>{const t=e.target.closest('[data-tip]');if(!t){tip.hidden=true;return}
tip.textContent=t.getAttribute('aria-label');tip.hidden=false;const r=t.getBoundingClientRect(),w=tip.offsetWidth,h=tip.offsetHeight;
tip.style.left=Math.max(6,Math.min(r.left+r.width/2-w/2,innerWidth-w-12))+scrollX+'px';
tip.style.top=(r.top>h+12?r.top-h-8:r.bottom+8)+scrollY+'px'};
document.addEventListener('pointerover',show);document.addEventListener('focusin',show);
document.addEventListener('focusout',()=>tip.hidden=true);
const cells=[...document.querySelectorAll('.c[data-tip]')];
document.querySelector('.strip')?.addEventListener('keydown',e=>{
const i=cells.indexOf(e.target),to={ArrowRight:i+1,ArrowLeft:i-1,Home:0,End:cells.length-1}[e.key];
if(i<0||to===undefined||!cells[to])return;e.preventDefault();cells[i].tabIndex=-1;cells[to].tabIndex=0;cells[to].focus()});
document.addEventListener('keydown',e=>{if(e.key==='Escape')tip.hidden=true});
const find=document.getElementById('find'),rows=[...document.querySelectorAll('#ops tbody tr')],count=document.getElementById('found');
const filter=()=>{const span=find.value.trim().match(/^(\d+)-(\d+)$/),words=find.value.toLowerCase().split(/\s+/).filter(Boolean);let n=0;
for(const r of rows){const k=span?+r.cells[0].textContent>=+span[1]&&+r.cells[0].textContent<=+span[2]:words.every(w=>r.textContent.toLowerCase().includes(w));
r.hidden=!k;r.classList.toggle('near',k&&words.length>0&&n<2000);n+=k}
count.textContent=words.length?n+' of '+rows.length+' shown':rows.length>1000?'the first 1000 of '+rows.length+': filter for others':''};
if(find){find.addEventListener('input',filter);filter()}
const zoom=e=>{const t=e.target.closest('[data-rows]');if(!t||!find||(e.key&&e.key!=='Enter'&&e.key!==' '))return;e.preventDefault();
find.value=t.dataset.rows;filter();find.scrollIntoView({block:'center'});find.focus({preventScroll:true})};
document.addEventListener('click',zoom);document.addEventListener('keydown',zoom);
for(const table of document.querySelectorAll('table.sorts'))table.querySelectorAll('thead th').forEach((th,i)=>{
const b=document.createElement('button');b.type='button';b.append(...th.childNodes);th.append(b);
b.addEventListener('click',()=>{const down=th.getAttribute('aria-sort')==='ascending',body=table.tBodies[0];
table.querySelectorAll('th').forEach(t=>t.removeAttribute('aria-sort'));th.setAttribute('aria-sort',down?'descending':'ascending');
const key=r=>r.cells[i].dataset.v??r.cells[i].textContent,all=[...body.rows].map(r=>[key(r),r]);
const numbers=all.every(([k])=>!isNaN(k));
all.sort(([a],[b])=>(a==='')-(b==='')||(down?-1:1)*(numbers?a-b:a.localeCompare(b,undefined,{numeric:true})));all.forEach(([,r],n)=>{body.append(r);if(table.id==='ops')r.classList.toggle('far',n>=1000)})})});
})();
)js";

/// Returns a section of the page; empty if its body is, so that no heading stands alone.
inline std::string section(std::string_view title, std::string_view about, std::string_view body) {
  if (body.empty()) return {};
  return fmt::format("<section><h2>{}</h2>\n<p class=\"soft\">{}</p>\n{}</section>\n", title, about, body);
}

/// A column of a table.
struct table_column {
  std::string_view title;
  std::string_view style = {};  // CSS classes; "n": a column of numbers; "wide": hidden on a phone
};

/// Returns a table up to its first row, in a region that scrolls sideways and, with `tall`, also downwards.
/// `attributes` go into the table's tag.
inline std::string table_begin(std::string_view label, std::string_view attributes,
                               const std::vector<table_column>& columns, bool tall = false) {
  std::string text =
      fmt::format("<div class=\"scroll{}\" tabindex=\"0\" role=\"region\" aria-label=\"{}\"><table{}><thead><tr>",
                  tall ? " tall" : "", label, attributes);
  for (const auto& [title, style] : columns) {
    text += style.empty() ? fmt::format("<th scope=\"col\">{}</th>", title)
                          : fmt::format("<th scope=\"col\" class=\"{}\">{}</th>", style, title);
  }
  return text + "</tr></thead><tbody>\n";
}
inline constexpr std::string_view table_end = "</tbody></table></div>\n";

/// Returns the table of operators up to its first row, with a field above that filters it; `what` says by what.
inline std::string operators_begin(std::string_view what, const std::vector<table_column>& columns) {
  return fmt::format(
             "<input type=\"search\" id=\"find\" placeholder=\"Filter: {}\" aria-label=\"Filter the operators\"> "
             "<span class=\"soft\" id=\"found\" role=\"status\"></span>\n",
             what) +
         table_begin("Operators", " id=\"ops\" class=\"sorts\"", columns, true);
}

/// Returns a cell that is sorted by `value`, whatever unit `shown` has. Values that are not finite are sorted to the
/// end.
inline std::string number_cell(double value, std::string_view shown, std::string_view style = "n") {
  return fmt::format("<td class=\"{}\" data-v=\"{}\">{}</td>", style,
                     std::isfinite(value) ? fmt::format("{:.6g}", value) : "", shown);
}

/// Returns a page around its sections. A browser loads it again after `reload` seconds; 0: never.
inline std::string page(std::string_view title, const std::string& body, int reload = 0,
                        std::string_view of = "CoMP precision search") {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width,"
      "initial-scale=1\">{}\n<title>{}</title>\n<style>{}</style><script>document.documentElement.className='js'</script></head><body><main>\n"
      "<header><p class=\"eyebrow\">{}</p><h1>{}</h1>\n{}</main><div id=\"tip\" role=\"tooltip\" hidden></div><script>{}</script></body></html>\n",
      reload > 0 ? fmt::format("<meta http-equiv=\"refresh\" content=\"{}\">", reload) : "", title, html_style, of,
      title, body, html_script);
}

}  // namespace comp::detail
