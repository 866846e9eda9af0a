// k3 logits: runs a prompt and writes its logits.

#include <fmt/format.h>

#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/options.h"

namespace k3::cli {
namespace {

struct LogitsOptions {
  RunOptions run;
  std::string ids, ids_file, out, with;
  bool last = false, stepwise = false;
};

std::vector<int32_t> prompt_ids(const LogitsOptions& o) {
  if (o.ids.empty() == o.ids_file.empty())
    throw InputError("logits: expected one of --ids and --ids-file, found " +
                     std::string(o.ids.empty() ? "neither" : "both"));
  std::vector<int32_t> ids = o.ids.empty() ? parse_ids(read_file_or_stdin(o.ids_file), o.ids_file)
                                           : parse_ids(o.ids, "--ids");
  if (ids.empty()) throw InputError("logits: expected at least one token id, found none");
  return ids;
}

// Another prompt of the batch, and where it stands.
struct Other {
  std::string where;
  std::vector<int32_t> ids;
};

std::vector<Other> company(const LogitsOptions& o) {
  std::vector<Other> prompts;
  if (o.with.empty()) return prompts;
  std::istringstream lines(read_file_or_stdin(o.with));
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::string where = fmt::format("{}: line {}", o.with, ++number);
    if (auto ids = parse_ids(line, where); !ids.empty()) prompts.push_back({where, std::move(ids)});
  }
  return prompts;
}

void run(const LogitsOptions& o) {
  if (o.run.listed_kernels()) return;
  if (o.out.empty()) throw InputError("--out", "file", "a name", "nothing");
  check_output("--out", o.out, o.run);
  DiskStorage disk;
  const auto writer = disk.create(o.out);
  const std::vector<int32_t> ids = prompt_ids(o);
  const std::vector<Other> others = company(o);
  size_t longest = ids.size();
  for (const Other& other : others) longest = std::max(longest, other.ids.size());
  Run run(o.run, o.run.engine(static_cast<int64_t>(longest * (1 + others.size())),
                              static_cast<int64_t>(longest),
                              static_cast<int64_t>(1 + others.size()), !o.last));
  Engine& engine = run.engine();
  for (const Other& other : others) engine.check_ids(other.ids, other.where);
  engine.check_ids(ids, o.ids.empty() ? o.ids_file : "--ids");

  std::vector<SequenceState> states;
  for (size_t i = 0; i <= others.size(); ++i) states.push_back(engine.new_sequence());
  const auto write = [&](const Engine::Logits& l) {
    if (l.feed == 0) writer->write(std::as_bytes(l.values));
  };
  if (o.stepwise) {
    for (size_t t = 0; t < ids.size(); ++t) {
      std::vector<Engine::Feed> feeds = {{&states[0], std::span(ids).subspan(t, 1), false}};
      for (size_t i = 0; i < others.size(); ++i)
        if (t < others[i].ids.size())
          feeds.push_back({&states[i + 1], std::span(others[i].ids).subspan(t, 1), false});
      run.feed(feeds, [&](const Engine::Logits& l) {
        if (!o.last || t + 1 == ids.size()) write(l);
      });
    }
  } else {
    std::vector<Engine::Feed> feeds = {{&states[0], ids, !o.last}};
    for (size_t i = 0; i < others.size(); ++i)
      feeds.push_back({&states[i + 1], others[i].ids, false});
    run.feed(feeds, write);
  }
  writer->commit();
  if (o.run.json)
    std::cout << nlohmann::ordered_json{{"out", o.out},
                                        {"rows", o.last ? 1 : ids.size()},
                                        {"vocab", engine.config().vocab_size}}
                     .dump()
              << "\n";
  run.finish();
}

}  // namespace

void add_logits(CLI::App& app) {
  auto o = std::make_shared<LogitsOptions>();
  CLI::App* sub =
      app.add_subcommand("logits", "run a prompt and write its logits (little-endian float32)");
  o->run.add(*sub);
  sub->add_option("--ids", o->ids, "token ids, e.g. 1,2,3");
  sub->add_option("--ids-file", o->ids_file, "file of token ids (- is stdin)");
  sub->add_option("--out", o->out, "output file: [tokens, vocab]");
  sub->add_flag("--json", o->run.json, "print one JSON object about the file");
  sub->add_flag("--last", o->last, "only the last row");
  sub->add_option("--chunk", o->run.chunk, "tokens of a forward pass")->check(whole(1, 1 << 20));
  sub->add_flag("--stepwise", o->stepwise, "one token at a time through the cache");
  sub->add_option("--with", o->with,
                  "file of other prompts (ids, one prompt a line) run in the same batch");
  sub->callback([o] { run(*o); });
}

}  // namespace k3::cli
