// What the adapters of systems for Node.js share: the same frame as adapter.py, and the same kinds of work.
import { randomBytes } from "node:crypto";
import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";

const KIB = { "1k": 1, "16k": 16, "128k": 128 };
const GATE_MS = 20;

export const require = createRequire(path.join(process.cwd(), "index.js")); // the modules of the directory it is run in
export const BULK = 1000;
export const DSN = process.env.BENCH_DSN;
export const REDIS = process.env.BENCH_REDIS;
const kind = process.env.BENCH_KIND ?? "noop";
export const attempts = { fail_1: 1, retry_5: 2 }[kind]; // undefined: what is usual in the system
const pace = Number(process.env.BENCH_PACE ?? 0) * 1000;
const marks = process.env.BENCH_MARKS ?? ".";
const now = () => Number(process.hrtime.bigint()) / 1e9;
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const nowUs = () => Math.round((performance.timeOrigin + performance.now()) * 1000);

const kib = KIB[/^(?:arguments|results)_(\w+)$/.exec(kind)?.[1]];
const length = kib ? kib * 1024 - '{"text":""}'.length : 89;
const fixed = kib ? randomBytes(length).toString("base64").slice(0, length) : "x".repeat(length);
let number = 0;

export function text() {
  if (kind === "stamp" || kind === "hold") return String(nowUs());
  if (kind === "fail_1" || kind === "retry_5") return String(number++ % 100).padStart(2, "0") + fixed;
  return fixed;
}

let count = 0, first = 0, last = 0, written = 0;

function countJobs() {
  const file = fs.openSync(path.join(marks, `${process.pid}.mark`), "w+");
  const mark = Buffer.alloc(24);
  setInterval(() => {
    if (count === written) return;
    written = count;
    mark.writeBigInt64LE(BigInt(count), 0);
    mark.writeDoubleLE(first, 8);
    mark.writeDoubleLE(last, 16);
    fs.writeSync(file, mark, 0, 24, 0);
  }, 5);
}

function spin() {
  const began = process.cpuUsage();
  let used;
  do used = process.cpuUsage(began); while (used.user + used.system < 1000);
}

export async function run(argument, attempt = 1) {
  if (first === 0) first = now();
  if (kind === "stamp" || kind === "hold") {
    fs.appendFileSync(path.join(marks, "starts"), `${argument} ${process.pid} ${nowUs()}\n`);
  }
  if (kind === "retry_5" && attempt === 1 && Number(argument.slice(0, 2)) < 5) throw new Error("again");
  if (kind === "cpu_1ms") spin();
  if (kind === "wait_10ms") await sleep(10);
  while (kind === "hold" && !fs.existsSync(path.join(marks, "gate"))) await sleep(GATE_MS);
  count++;
  last = now();
  if (kind === "fail_1" && Number(argument.slice(0, 2)) < 1) throw new Error("not this one");
  return kind.startsWith("results_") ? argument : undefined;
}

async function spread(one, jobs, callers) {
  const caller = async () => {
    for (let n = 0; n < Math.floor(jobs / callers); n++) {
      await one();
      if (pace) await sleep(pace);
    }
  };
  const began = now();
  await Promise.all(Array.from({ length: callers }, caller));
  return now() - began;
}

async function inBulk(many, jobs) {
  const began = now();
  for (let start = 0; start < jobs; start += BULK) await many(Math.min(BULK, jobs - start));
  return now() - began;
}

// producer: () => ({ one, many, close })
export async function main(producer, work, setup = async () => {}) {
  const [what, way, ...rest] = process.argv.slice(2);
  if (what === "setup") return await setup();
  if (what === "work") {
    countJobs();
    return await work();
  }
  const [jobs, callers] = rest.map(Number);
  const { one, many, close } = await producer();
  const seconds = way === "bulk" ? await inBulk(many, jobs) : await spread(one, jobs, callers);
  await close();
  const made = way === "concurrent" ? Math.floor(jobs / callers) * callers : jobs;
  console.log(JSON.stringify({ jobs: made, seconds }));
}
