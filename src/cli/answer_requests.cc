// k3 generate --requests: a file of chat requests, answered side by side.

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "base/utf8.h"
#include "cli/generation.h"
#include "cli/options.h"
#include "text/chat.h"
#include "text/reply_parser.h"

namespace k3::cli {
namespace {

constexpr size_t kAtOnce = 32;

struct Request {
  Json id;
  std::vector<int32_t> prompt;
  ReplyOptions reply;
  SamplingOptions sampling;
  int64_t max_tokens = 0;
  std::string answer;  // the line of output
};

std::vector<Request> read_requests(const std::string& path, const Tokenizer& tokenizer,
                                   const SamplingOptions& sampling, int64_t max_tokens) {
  std::vector<Request> all;
  std::istringstream lines(read_file_or_stdin(path));
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::string where = fmt::format("{}: line {}", path, ++number);
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const Json json = parse_json(line, where);
    const Json* request = json.find("request");
    if (!request) throw InputError(where, "request", "a chat request", "nothing");
    Request r;
    r.id = json.find("id") ? *json.find("id") : Json::string(fmt::format("{}", number));
    r.sampling = sampling;
    r.max_tokens = max_tokens;
    if (const Json* t = json.get("temperature")) {
      if (!t->as_double()) throw InputError(where, "temperature", "a number", t->describe());
      r.sampling.temperature = static_cast<float>(*t->as_double());
    }
    if (const Json* m = json.get("max_tokens")) {
      if (!m->as_int() || *m->as_int() < 1 || *m->as_int() > 1 << 20)
        throw InputError(where, "max_tokens", "1 to 1048576", m->describe());
      r.max_tokens = *m->as_int();
    }
    check_sampling(r.sampling);
    try {
      const ChatPrompt prompt = render_chat(*request);
      r.prompt = prompt_ids(tokenizer, prompt, PadMode::kOne);
      r.reply = {prompt.open_channel, prompt.tools_callable(), {}};
    } catch (const InputError& error) {
      throw InputError(where + ": " + error.what());
    }
    all.push_back(std::move(r));
  }
  if (all.empty()) throw InputError(path, "requests", "at least one line", "none");
  return all;
}

// One request on its way.
struct Active {
  Request* request;
  SequenceState state;
  Sampler sampler;
  ReplyParser parser;
  std::vector<int32_t> generated;
  bool done = false;
};

}  // namespace

void answer_requests(const RunOptions& options, const SamplingOptions& sampling, int64_t max_tokens,
                     const std::string& path, const std::string& output) {
  const std::string dir = options.model_dir();
  DiskStorage disk;
  const auto writer = disk.create(output);
  const std::optional<Tokenizer> tokenizer = Tokenizer::load(disk, dir);
  std::vector<Request> requests = read_requests(path, *tokenizer, sampling, max_tokens);
  int64_t longest = 0, context = 0;
  for (const Request& r : requests) {
    const auto length = static_cast<int64_t>(r.prompt.size());
    longest = std::max(longest, length);
    context = std::max(context, length + r.max_tokens);
  }
  const size_t most = std::min(kAtOnce, requests.size());
  Run run(options, options.engine(longest, context, static_cast<int64_t>(most)));
  Engine& engine = run.engine();
  check_vocabulary(*tokenizer, dir, engine.config());
  const std::vector<bool> drawable = drawable_ids(engine.config(), tokenizer);
  const std::vector<int32_t> ends = end_ids(dir, engine.config(), tokenizer);

  std::vector<std::unique_ptr<Active>> active;
  size_t next = 0, answered = 0;
  while (answered < requests.size()) {
    while (active.size() < most && next < requests.size()) {
      Request& r = requests[next++];
      active.push_back(std::unique_ptr<Active>(new Active{&r,
                                                          engine.new_sequence(),
                                                          Sampler(r.sampling, drawable),
                                                          ReplyParser(*tokenizer, r.reply),
                                                          {},
                                                          false}));
    }
    std::vector<Engine::Feed> feeds;
    for (const auto& a : active)
      feeds.push_back({&a->state,
                       a->generated.empty() ? std::span<const int32_t>(a->request->prompt)
                                            : std::span<const int32_t>(&a->generated.back(), 1),
                       false});
    engine.run(feeds, [&](const Engine::Logits& l) {
      Active& a = *active[l.feed];
      const int32_t id = a.sampler.sample(l.values, a.generated);
      a.generated.push_back(id);
      std::vector<ReplyDelta> deltas;
      const bool stop = std::find(ends.begin(), ends.end(), id) != ends.end();
      if (!stop) a.parser.feed(id, &deltas);
      a.done = stop || a.parser.finished() ||
               static_cast<int64_t>(a.generated.size()) >= a.request->max_tokens;
      if (!a.done) return;
      const Reply reply = a.parser.finish(
          stop || a.parser.finished() ? ReplyEnd::kStop : ReplyEnd::kLength, &deltas);
      Json line = Json::object();
      line.add("id", a.request->id);
      line.add("message", reply_message(reply, false));
      line.add("finish_reason", Json::string(reply.finish_reason));
      a.request->answer = write_json(line, JsonStyle::kCompact) + "\n";
      ++answered;
    });
    std::erase_if(active, [](const auto& a) { return a->done; });
    run.progress().show("answering", answered, requests.size(), "requests");
  }
  for (const Request& r : requests) writer->write(std::as_bytes(std::span(r.answer)));
  writer->commit();
  run.finish();
}

}  // namespace k3::cli
