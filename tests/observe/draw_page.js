// SPDX-License-Identifier: Apache-2.0
// Runs the script of a page (observe/report_page.inc) on the few parts of a DOM that it uses, and prints what it drew:
// tags, attributes, and texts in brackets, which no tag has.
// Usage: draw_page.js PAGE [FILTER [HEAD]]   FILTER is put into the tables' filters, then a click on the heads called HEAD
'use strict';
const [, , file, filter, head] = process.argv;
const html = require('fs').readFileSync(file, 'utf8');

class Element {
  constructor(tag) {
    this.tag = tag, this.attributes = {}, this.children = [], this.listeners = {}, this.value = '';
  }
  setAttribute(name, value) { this.attributes[name] = String(value); }
  removeAttribute(name) { delete this.attributes[name]; }
  append(...kids) {
    for (const kid of kids) {
      if (kid instanceof Element && kid.parent) kid.parent.children.splice(kid.parent.children.indexOf(kid), 1);
      if (kid instanceof Element) kid.parent = this;
      this.children.push(kid instanceof Element ? kid : String(kid));
    }
  }
  replaceChildren(...kids) {
    for (const kid of this.children) if (kid instanceof Element) kid.parent = undefined;
    this.children = [];
    this.append(...kids);
  }
  addEventListener(when, call) { (this.listeners[when] = this.listeners[when] || []).push(call); }
  fire(when) { for (const call of this.listeners[when] || []) call({target: this}); }
  scrollIntoView() {}
  cloneNode() { return Object.assign(new Element(this.tag), {attributes: {...this.attributes}}); }
  get textContent() { return this.children.map(kid => kid instanceof Element ? kid.textContent : kid).join(''); }
  set textContent(text) { this.replaceChildren(text); }
  get cells() { return this.children.filter(kid => kid.tag === 'td' || kid.tag === 'th'); }
  get previousElementSibling() {
    const all = this.parent.children.filter(kid => kid instanceof Element);
    return all[all.indexOf(this) - 1];
  }
  all(holds) { return this.children.filter(kid => kid instanceof Element).flatMap(kid => [...holds(kid) ? [kid] : [], ...kid.all(holds)]); }
  querySelectorAll(what) { return this.all(kid => what[0] === '.' ? kid.attributes.class === what.slice(1) : kid.tag === what); }
  print() {
    const attributes = Object.entries(this.attributes).map(([name, value]) => ` ${name}=${JSON.stringify(value)}`).join('');
    return `<${this.tag}${attributes}>${this.children.map(kid => kid instanceof Element ? kid.print() : `[${kid}]`).join('')}</${this.tag}>`;
  }
}

// What stands in the page before the script runs: the few tags that C++ writes.
const main = new Element('main'), unescaped = text => text.replace(/&lt;/g, '<').replace(/&gt;/g, '>').replace(/&amp;/g, '&');
let now = main;
for (const [, closes, tag, more, text] of html.split('<main>')[1].split('</main>')[0].matchAll(/<(\/?)(\w+)([^>]*)>([^<]*)/g)) {
  if (closes) {
    now = now.parent;
  } else {
    const made = new Element(tag);
    for (const [, name, value] of more.matchAll(/(\w+)="([^"]*)"/g)) made.setAttribute(name, value);
    now.append(made);
    now = made;
  }
  if (text.trim()) now.append(unescaped(text));
}

const data = new Element('script');
data.append(html.split('id="data">')[1].split('</script>')[0]);
global.document = {createElement: tag => new Element(tag), createElementNS: (space, tag) => new Element(tag),
  getElementById: () => data, querySelector: () => main};
require('vm').runInThisContext(html.split('<script>')[1].split('</script>')[0]);
for (const input of filter ? main.querySelectorAll('input') : []) {
  input.value = filter;
  input.fire('input');
}
for (const th of head ? main.querySelectorAll('th').filter(th => th.textContent === head) : []) th.fire('click');
process.stdout.write(main.print());
