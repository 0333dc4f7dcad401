# Sidekiq on Redis: setup | enqueue WAY JOBS CALLERS | work. The same frame as adapter.py, and the same kinds of work.
# Its own command loads this file, too, for the class of the job.
require "sidekiq"
require "json"
require "securerandom"

module Frame
  KIB = { "1k" => 1, "16k" => 16, "128k" => 128 }.freeze
  BULK = 1000
  KIND = ENV.fetch("BENCH_KIND", "noop")
  PACE = ENV.fetch("BENCH_PACE", "0").to_f
  MARKS = ENV.fetch("BENCH_MARKS", ".")
  # How often a job is run again; true: as often as is usual.
  RETRY = { "fail_1" => false, "retry_5" => 1 }.fetch(KIND, true)
  kib = KIB[KIND[/\A(?:arguments|results)_(\w+)\z/, 1]]
  length = kib ? kib * 1024 - '{"text":""}'.length : 89
  TEXT = kib ? SecureRandom.base64(length)[0, length] : "x" * length
  LOCK = Mutex.new

  class << self
    def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

    def now_us = Process.clock_gettime(Process::CLOCK_REALTIME, :microsecond)

    def text
      case KIND
      when "stamp", "hold" then now_us.to_s
      when "fail_1", "retry_5" then format("%02d", LOCK.synchronize { @number = (@number || -1) + 1 } % 100) + TEXT
      else TEXT
      end
    end

    def run(text)
      LOCK.synchronize { @first ||= now }
      if %w[stamp hold].include?(KIND)
        File.open(File.join(MARKS, "starts"), "a") { |file| file.write("#{text} #{Process.pid} #{now_us}\n") }
      end
      case KIND
      when "cpu_1ms" then spin
      when "wait_10ms" then sleep 0.01
      when "hold" then sleep 0.02 until File.exist?(File.join(MARKS, "gate"))
      end
      hit
      raise "not this one" if KIND == "fail_1" && text[0, 2].to_i < 1
    end

    def spin
      clock = Process::CLOCK_THREAD_CPUTIME_ID
      last = Process.clock_gettime(clock) + 0.001
      nil until Process.clock_gettime(clock) >= last
    end

    def hit
      LOCK.synchronize do
        @file ||= File.open(File.join(MARKS, "#{Process.pid}.mark"), "w+b").tap { |file| file.sync = true }
        @count = (@count || 0) + 1
        @file.pwrite([@count, @first, now].pack("q<EE"), 0)
      end
    end

    def submit(way, jobs, callers)
      BenchJob.perform_async(text)
      began = now
      if way == "bulk"
        (0...jobs).step(BULK) { |from| BenchJob.perform_bulk(Array.new([BULK, jobs - from].min) { [text] }) }
      else
        Array.new(callers) { Thread.new { (jobs / callers).times { one } } }.each(&:join)
      end
      made = way == "concurrent" ? jobs / callers * callers : jobs
      puts JSON.dump(jobs: made, seconds: now - began)
    end

    def one
      BenchJob.perform_async(text)
      sleep PACE if PACE.positive?
    end
  end
end

redis = { url: ENV.fetch("BENCH_REDIS", nil) }
Sidekiq.configure_client { |config| config.redis = redis.merge(size: 100) }
Sidekiq.configure_server { |config| config.redis = redis }
Sidekiq.logger.level = Logger::FATAL

class BenchJob
  include Sidekiq::Job
  sidekiq_options retry: Frame::RETRY

  def perform(text) = Frame.run(text)
end

if $PROGRAM_NAME == __FILE__
  what, way, *numbers = ARGV
  case what
  when "work"
    threads = Frame::KIND == "wait_10ms" ? "50" : "10"
    exec "sidekiq", "-r", File.expand_path(__FILE__), "-c", threads
  when "enqueue"
    Frame.submit(way, *numbers.map(&:to_i))
  end
end
