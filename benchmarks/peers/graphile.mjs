// Graphile Worker: setup | enqueue WAY JOBS CALLERS | work. Run with the directory that holds node_modules as cwd.
import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";

const require = createRequire(path.join(process.cwd(), "index.js"));
const { makeWorkerUtils, run } = require("graphile-worker");
const pg = require("pg");

const connectionString = process.env.BENCH_DSN;
const text = "x".repeat(89);
const BULK = 1000;
const now = () => Number(process.hrtime.bigint()) / 1e9;

async function setup() {
  const utils = await makeWorkerUtils({ connectionString });
  await utils.migrate();
  await utils.release();
}

async function enqueue(way, jobs, callers) {
  const pgPool = new pg.Pool({ connectionString, max: 50 });
  const utils = await makeWorkerUtils({ pgPool });
  await utils.addJob("noop", { text });
  const began = now();
  if (way === "bulk") {
    for (let start = 0; start < jobs; start += BULK) {
      const count = Math.min(BULK, jobs - start);
      await utils.addJobs(Array.from({ length: count }, () => ({ identifier: "noop", payload: { text } })));
    }
  } else {
    const caller = async () => {
      for (let n = 0; n < Math.floor(jobs / callers); n++) await utils.addJob("noop", { text });
    };
    await Promise.all(Array.from({ length: callers }, caller));
  }
  const seconds = now() - began;
  await utils.release();
  await pgPool.end();
  const made = way === "concurrent" ? Math.floor(jobs / callers) * callers : jobs;
  console.log(JSON.stringify({ jobs: made, seconds }));
}

async function work() {
  const file = fs.openSync(path.join(process.env.BENCH_MARKS, `${process.pid}.mark`), "w+");
  const mark = Buffer.alloc(24);
  let count = 0, first = 0, last = 0, written = 0;
  setInterval(() => {
    if (count === written) return;
    written = count;
    mark.writeBigInt64LE(BigInt(count), 0);
    mark.writeDoubleLE(first, 8);
    mark.writeDoubleLE(last, 16);
    fs.writeSync(file, mark, 0, 24, 0);
  }, 5);
  const noop = async () => {
    last = now();
    if (count++ === 0) first = last;
  };
  const silent = { logger: new (require("graphile-worker").Logger)(() => () => {}) };
  await run({
    ...silent,
    taskList: { noop },
    preset: {
      worker: {
        connectionString,
        concurrentJobs: 100,
        maxPoolSize: 20,
        localQueue: { size: 2000 },
        completeJobBatchDelay: 0,
        failJobBatchDelay: 0,
      },
    },
  });
}

const [what, ...rest] = process.argv.slice(2);
if (what === "setup") await setup();
else if (what === "work") await work();
else await enqueue(rest[0], Number(rest[1]), Number(rest[2]));
