// k3 bench: speed on this machine, beside what the machine could do.

#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "kernels/ceilings.h"

namespace k3::cli {
namespace {

struct BenchOptions {
  RunOptions run;
  int64_t prompt = 512, gen = 64, rounds = 3;
};

constexpr double kProbeSeconds = 0.25;
constexpr uint64_t kProbeBytes = uint64_t{768} << 20;  // beyond any cache
constexpr uint64_t kLeastProbe = uint64_t{384} << 20;  // --ram may leave less

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// One figure over the rounds, with the limit measured in the same rounds.
struct Row {
  std::string name, unit;
  std::vector<double> values, limits;
};

class Bench {
 public:
  Bench(const BenchOptions& o)
      : o_(o),
        run_(o.run, o.run.engine(o.prompt, o.prompt + o.gen)),
        engine_(run_.engine()),
        account_(kProbeBytes) {
    const Plan& plan = engine_.plan();
    const uint64_t left = plan.ram - plan.total_bytes;
    probe_ = Buffer(account_, "bench", std::clamp<uint64_t>(left, uint64_t{16} << 20, kProbeBytes));
    std::memset(probe_.data(), 1, probe_.size());
    ids_.resize(static_cast<size_t>(o.prompt + o.gen));
    uint64_t random = 1;
    for (int32_t& id : ids_) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      id =
          static_cast<int32_t>((random >> 33) % static_cast<uint64_t>(engine_.config().vocab_size));
    }
  }

  void measure() {
    warm_up();
    for (int64_t i = 0; i < o_.rounds; ++i) {
      run_.progress().show("bench", static_cast<uint64_t>(i), static_cast<uint64_t>(o_.rounds),
                           "rounds");
      round();
    }
    run_.finish();
  }

  void print() const {
    const nlohmann::ordered_json json = as_json();
    if (o_.run.json) {
      std::cout << json.dump() << "\n";
      return;
    }
    std::cout << fmt::format("{:18} {:>10} {:10} {:>10} {:>9}\n", "", "value", "", "limit",
                             "fraction");
    for (const auto& row : json["rows"]) {
      std::cout << fmt::format("{:18} {:>10.4g} {:10}", row["name"].get<std::string>(),
                               row["value"].get<double>(), row["unit"].get<std::string>());
      if (!row["limit"].is_null())
        std::cout << fmt::format(" {:>10.4g} {:>8.1f} %", row["limit"].get<double>(),
                                 100 * row["fraction"].get<double>());
      std::cout << "\n";
    }
  }

 private:
  // Rate of a probe that every thread runs at once.
  double together(const std::function<Ceiling(int)>& probe) {
    std::vector<double> rates(static_cast<size_t>(engine_.pool().size()));
    engine_.pool().run(
        [&](int thread) { rates[static_cast<size_t>(thread)] = probe(thread).rate(); });
    double sum = 0;
    for (const double r : rates) sum += r;
    return sum;
  }

  // Bytes a second of the same direct reads, in the same order and as deep, with nothing to
  // compute. A disk or a hypervisor that caches is as warm for these as it was for the run.
  double disk_rate(const std::vector<Reader::Extent>& reads) {
    Reader& reader = engine_.reader();
    uint64_t bytes = 0;
    const double seconds = seconds_of([&] {
      Completion completion;
      for (const Reader::Extent& r : reads)
        for (size_t done = 0, part; done < r.length; done += part) {
          part = std::min(r.length - done, reader.staging_bytes());
          const File* file = r.file;
          const uint64_t at = r.offset + done;
          bytes += part;
          reader.submit(Reader::kTrunk, completion,
                        [file, at, part](Reader::Lane& lane) { lane.stage(*file, at, part); });
        }
      completion.wait();
    });
    return static_cast<double>(bytes) / seconds;
  }

  void warm_up() {
    SequenceState state = engine_.new_sequence();
    const Engine::Feed feed{&state, prompt(), false};
    engine_.run({&feed, 1}, [](const Engine::Logits&) {});
  }
  std::span<const int32_t> prompt() const {
    return std::span(ids_).first(static_cast<size_t>(o_.prompt));
  }

  void round() {
    const Isa isa = engine_.kernels().isa;
    const Plan& plan = engine_.plan();
    const double fma_1 = fma_ceiling(isa, kProbeSeconds).rate();
    const double fma = together([&](int) { return fma_ceiling(isa, kProbeSeconds); });
    const double dot = together([&](int) { return dot_ceiling(isa, kProbeSeconds); });
    const auto share = static_cast<int64_t>(probe_.size()) / engine_.pool().size();
    // A small probe would measure a cache: no figure is better than a wrong one.
    const bool beyond_caches = probe_.size() >= kLeastProbe;
    const double dram = !beyond_caches ? 0 : together([&](int t) {
      return read_ceiling(isa, probe_.data() + t * share, share, kProbeSeconds);
    });
    const bool streams = plan.bytes_read_per_token > 1 << 20;

    SequenceState state = engine_.new_sequence();
    const auto feed = [&](std::span<const int32_t> ids) {
      const Engine::Feed one{&state, ids, false};
      engine_.run({&one, 1}, [](const Engine::Logits&) {});
    };
    std::vector<Reader::Extent> reads[2];
    if (streams) engine_.reader().record(&reads[0]);
    const uint64_t read_before = engine_.statistics().bytes_read;
    const double prefill = seconds_of([&] { feed(prompt()); });
    if (streams) engine_.reader().record(&reads[1]);
    const uint64_t read_prefill = engine_.statistics().bytes_read - read_before;
    const double decode = seconds_of([&] {
      for (int64_t i = 0; i < o_.gen; ++i)
        feed(std::span(ids_).subspan(static_cast<size_t>(o_.prompt + i), 1));
    });
    const uint64_t read_decode = engine_.statistics().bytes_read - read_before - read_prefill;
    engine_.reader().record(nullptr);

    // Two int8 planes take twice the dot products.
    const Activations a = engine_.options().activations;
    const double block = a == Activations::k16 ? dot / 2 : a == Activations::kInt8 ? dot : fma;
    const auto tokens = static_cast<double>(o_.prompt), steps = static_cast<double>(o_.gen);
    const double best_prefill = 1 / (plan.flops_dense / fma + plan.flops_block / block);
    const auto touched = static_cast<double>(plan.bytes_touched_per_token) +
                         static_cast<double>(plan.kv_bytes_per_token) * (tokens + steps / 2);
    add("prefill_tok_s", "tokens/s", tokens / prefill, best_prefill);
    if (o_.gen > 0) {
      add("decode_tok_s", "tokens/s", steps / decode, dram / touched);
      add("decode_gb_s", "GB/s", touched * steps / decode / 1e9, dram / 1e9);
    }
    if (streams) {
      add("prefill_read_gb_s", "GB/s", static_cast<double>(read_prefill) / prefill / 1e9,
          disk_rate(reads[0]) / 1e9);
      if (o_.gen > 0)
        add("decode_read_gb_s", "GB/s", static_cast<double>(read_decode) / decode / 1e9,
            disk_rate(reads[1]) / 1e9);
    }
    if (beyond_caches) add("dram_read_gb_s", "GB/s", dram / 1e9, 0);
    add("fma_gflops_1", "GFLOP/s", fma_1 / 1e9, 0);
    add("fma_gflops_all", "GFLOP/s", fma / 1e9, 0);
    add("dot_gops_all", "GOP/s", dot / 1e9, 0);
  }

  void add(const std::string& name, const std::string& unit, double value, double limit) {
    auto row =
        std::find_if(rows_.begin(), rows_.end(), [&](const Row& r) { return r.name == name; });
    if (row == rows_.end()) row = rows_.insert(rows_.end(), {name, unit, {}, {}});
    row->values.push_back(value);
    if (limit > 0) row->limits.push_back(limit);
  }

  nlohmann::ordered_json as_json() const {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const Row& row : rows_) {
      nlohmann::ordered_json r = {{"name", row.name},
                                  {"value", median(row.values)},
                                  {"unit", row.unit},
                                  {"limit", nullptr},
                                  {"fraction", nullptr}};
      if (!row.limits.empty()) {
        std::vector<double> fractions;
        for (size_t i = 0; i < row.limits.size(); ++i)
          fractions.push_back(row.values[i] / row.limits[i]);
        r["limit"] = median(row.limits);
        r["fraction"] = median(fractions);
      }
      r["worst"] = *std::min_element(row.values.begin(), row.values.end());
      r["best"] = *std::max_element(row.values.begin(), row.values.end());
      rows.push_back(r);
    }
    const EngineOptions& e = engine_.options();
    const Plan& plan = engine_.plan();
    return {{"engine", "k3"},
            {"model", e.model_dir},
            {"threads", e.threads},
            {"kernels", name(engine_.kernels().isa)},
            {"trunk", e.int8_trunk ? "int8" : "bf16"},
            {"activations", e.exact ? "exact" : name(e.activations)},
            {"prompt", o_.prompt},
            {"gen", o_.gen},
            {"rounds", o_.rounds},
            {"bytes_touched_per_token", plan.bytes_touched_per_token},
            {"bytes_read_per_token", plan.bytes_read_per_token},
            {"experts_read", engine_.statistics().experts_read},
            {"rows", rows}};
  }

  const BenchOptions& o_;
  Run run_;
  Engine& engine_;
  MemoryAccount account_;
  Buffer probe_;
  std::vector<int32_t> ids_;
  std::vector<Row> rows_;
};

void run(const BenchOptions& o) {
  if (o.run.listed_kernels()) return;
  Bench bench(o);
  bench.measure();
  bench.print();
}

}  // namespace

void add_bench(CLI::App& app) {
  auto o = std::make_shared<BenchOptions>();
  CLI::App* sub =
      app.add_subcommand("bench", "speed of prefill and decode, beside this machine's limits");
  o->run.add(*sub);
  sub->add_option("--prompt", o->prompt, "tokens of the prompt")
      ->check(whole(1, 1 << 20))
      ->capture_default_str();
  sub->add_option("--gen", o->gen, "tokens decoded after it")
      ->check(whole(0, 1 << 20))
      ->capture_default_str();
  sub->add_option("--rounds", o->rounds, "repetitions; medians are printed")
      ->check(whole(1, 100))
      ->capture_default_str();
  sub->add_option("--chunk", o->run.chunk, "tokens of a forward pass")->check(whole(1, 1 << 20));
  sub->add_flag("--json", o->run.json, "print one JSON object");
  sub->callback([o] { run(*o); });
}

}  // namespace k3::cli
