// Speeds of the kernels on one thread, beside the ceilings of the same minutes.
//
//   kernels_bench [isa] [repetitions]
//
// All measurements of a group are interleaved and the median is printed (the best in brackets), in
// time the thread was running, so that a busy machine disturbs them little. M = 1 .. 4 read more
// than 1 GB of different matrices, so that no cache helps.
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "kernels/ceilings.h"
#include "kernels/kernels.h"

namespace k3 {
namespace {

double thread_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Memory in huge pages, as the program's own arenas have it.
std::byte* huge(int64_t bytes) {
  const auto n = static_cast<size_t>(round_up(bytes, 2 << 20));
  void* p = std::aligned_alloc(2 << 20, n);
  madvise(p, n, MADV_HUGEPAGE);
  return static_cast<std::byte*>(p);
}

struct Measurement {
  std::string name;
  const char* unit;
  double ceiling_index;         // which measurement it is a fraction of; itself for ceilings
  std::function<double()> run;  // the amount done, in billions
  std::vector<double> rates = {};
};

void report(std::vector<Measurement>& group, int repetitions) {
  for (int i = 0; i < repetitions + 1; ++i) {
    for (Measurement& m : group) {
      const double start = thread_seconds();
      const double amount = m.run();
      if (i > 0) m.rates.push_back(amount / (thread_seconds() - start));  // the first warms up
    }
  }
  std::vector<double> medians, best;
  for (Measurement& m : group) {
    std::sort(m.rates.begin(), m.rates.end());
    medians.push_back(m.rates[m.rates.size() / 2]);
    best.push_back(m.rates.back());
  }
  for (size_t i = 0; i < group.size(); ++i) {
    const auto c = static_cast<size_t>(group[i].ceiling_index);
    std::printf("%-34s %8.1f [%8.1f] %-8s %5.1f %% [%5.1f %%]\n", group[i].name.c_str(), medians[i],
                best[i], group[i].unit, 100 * medians[i] / medians[c], 100 * best[i] / best[c]);
  }
}

struct Weights {
  std::vector<WeightView> matrices;
  double bytes = 0;
};

// As many rows x cols matrices as fit; contents that are ordinary numbers.
Weights fill(Layout layout, int64_t rows, int64_t cols, std::byte* memory, int64_t bytes) {
  WeightView shape{layout, rows, cols, nullptr, nullptr};
  const int64_t data = shape.data_bytes(), scales = shape.scale_bytes();
  Weights w;
  uint64_t state = 1;
  for (int64_t at = 0; at + data + scales <= bytes; at += round_up(data + scales, 64)) {
    for (int64_t i = 0; i < data; i += 8) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      uint64_t bits = state ^ (state >> 29);
      if (layout == Layout::kBf16Panels) bits = (bits & 0x807f807f807f807fu) | 0x3f003f003f003f00u;
      if (layout == Layout::kF32Panels) bits = (bits & 0x807fffff807fffffu) | 0x3f0000003f000000u;
      std::memcpy(memory + at + i, &bits, 8);
    }
    for (int64_t i = 0; i < scales; ++i) {
      const int byte = layout == Layout::kMxfp4Rows ? 118 + static_cast<int>(i * 7 % 9)
                       : i % 2 == 0                 ? 0x5a
                                                    : 0x24;
      memory[at + data + i] = static_cast<std::byte>(byte);
    }
    w.matrices.push_back({layout, rows, cols, memory + at, memory + at + data});
    w.bytes += static_cast<double>(data + scales);
  }
  return w;
}

class Activations {
 public:
  Activations(const Kernels& k, ActivationForm form, Layout layout, int64_t tokens, int64_t cols)
      : x_(static_cast<size_t>(tokens * cols)) {
    for (size_t i = 0; i < x_.size(); ++i) {
      x_[i] = static_cast<float>(static_cast<int>(i * 2654435761u % 2001) - 1000) / 500;
    }
    operand_.form = form;
    operand_.tokens = tokens;
    operand_.cols = cols;
    operand_.f32 = x_.data();
    operand_.f32_stride = cols;
    if (form == ActivationForm::kF32) return;
    operand_.quantized_stride = quantized_bytes(form, cols);
    q_.resize(static_cast<size_t>(tokens * operand_.quantized_stride));
    operand_.quantized = q_.data();
    for (int64_t t = 0; t < tokens; ++t) {
      k.quantize(form, layout, x_.data() + t * cols, cols,
                 q_.data() + t * operand_.quantized_stride);
    }
  }
  const Operand& operand() const { return operand_; }

 private:
  std::vector<float> x_;
  std::vector<std::byte> q_;
  Operand operand_;
};

constexpr struct {
  const char* name;
  Layout layout;
  ActivationForm form;
  int64_t rows, cols;
} kProducts[] = {
    {"mxfp4 x int16", Layout::kMxfp4Rows, ActivationForm::kInt16, 3072, 3584},
    {"mxfp4 x int8", Layout::kMxfp4Rows, ActivationForm::kInt8, 3072, 3584},
    {"mxfp4 x f32", Layout::kMxfp4Rows, ActivationForm::kF32, 3072, 3584},
    {"int8 x int16", Layout::kInt8Panels, ActivationForm::kInt16, 2048, 7168},
    {"int8 x int8", Layout::kInt8Panels, ActivationForm::kInt8, 2048, 7168},
    {"int8 x f32", Layout::kInt8Panels, ActivationForm::kF32, 2048, 7168},
    {"bf16 x f32", Layout::kBf16Panels, ActivationForm::kF32, 2048, 7168},
    {"f32 x f32", Layout::kF32Panels, ActivationForm::kF32, 1024, 7168},
};

void stream_products(const Kernels& k, int repetitions, const std::string& only) {
  const int64_t bytes = int64_t{1100} << 20;
  std::byte* memory = huge(bytes);
  for (const auto& product : kProducts) {
    if (!only.empty() && only != product.name) continue;
    const Weights w = fill(product.layout, product.rows, product.cols, memory, bytes);
    std::vector<float> y(static_cast<size_t>(8 * product.rows));
    std::vector<Activations> x;
    std::vector<Measurement> group;
    group.push_back(
        {"read", "GB/s", 0, [&] { return read_ceiling(k.isa, memory, bytes, 0).amount / 1e9; }});
    const int64_t batches[] = {1, 2, 4, 6, 8};
    for (const int64_t m : batches) {
      x.emplace_back(k, product.form, product.layout, m, product.cols);
    }
    for (size_t i = 0; i < x.size(); ++i) {
      group.push_back(
          {std::string(product.name) + ", M = " + std::to_string(batches[i]), "GB/s", 0, [&, i] {
             for (const WeightView& view : w.matrices) {
               k.matmul(view, x[i].operand(), y.data(), product.rows, 0, view.panels());
             }
             return w.bytes / 1e9;
           }});
    }
    report(group, repetitions);
  }
  std::free(memory);
}

void tile_products(const Kernels& k, int repetitions, const std::string& only) {
  const int64_t bytes = int64_t{40} << 20;
  std::byte* memory = huge(bytes);
  for (const auto& product : kProducts) {
    if (!only.empty() && only != product.name) continue;
    const Weights w = fill(product.layout, product.rows, product.cols, memory, bytes);
    const WeightView view = w.matrices[0];
    std::vector<float> y(static_cast<size_t>(256 * product.rows));
    std::vector<Activations> x;
    std::vector<Measurement> group;
    const bool f32 = product.form == ActivationForm::kF32;
    group.push_back({f32 ? "fma" : "dot", f32 ? "GFLOP/s" : "GOP/s", 0, [&] {
                       return (f32 ? fma_ceiling(k.isa, 0.01) : dot_ceiling(k.isa, 0.01)).amount /
                              1e9;
                     }});
    const int64_t batches[] = {16, 64, 256};
    for (const int64_t m : batches) {
      x.emplace_back(k, product.form, product.layout, m, product.cols);
    }
    for (size_t i = 0; i < x.size(); ++i) {
      group.push_back({std::string(product.name) + ", M = " + std::to_string(batches[i]),
                       f32 ? "GFLOP/s" : "GOP/s", 0, [&, i] {
                         k.matmul(view, x[i].operand(), y.data(), product.rows, 0, view.panels());
                         return 2e-9 *
                                static_cast<double>(batches[i] * product.rows * product.cols);
                       }});
    }
    report(group, repetitions);
  }
  std::free(memory);
}

void kda_and_mla(const Kernels& k, int repetitions) {
  const int64_t d = 128, heads = 96, layers = 24, tokens = 256;
  std::vector<float> rows(static_cast<size_t>(tokens * d), 0.01f), out(rows), beta(rows);
  float* states = reinterpret_cast<float*>(huge(layers * heads * d * d * 4));
  std::fill_n(states, layers * heads * d * d, 0.01f);
  KdaHead head;
  head.head_dim = d;
  head.q = head.k = head.v = head.alpha = rows.data();
  head.stride = head.out_stride = d;
  head.beta = beta.data();
  head.beta_stride = 1;
  head.out = out.data();
  const auto kda = [&](int64_t count, int64_t states_used) {
    head.tokens = count;
    for (int64_t s = 0; s < states_used; ++s) {
      head.state = states + s * d * d;
      k.kda(head, 0, d / 16);
    }
  };
  const int64_t lanes = 48, channels = 576, latent = 512, positions = 4096;
  std::vector<float> pages(static_cast<size_t>(positions * channels), 0.01f),
      query(static_cast<size_t>(channels), 0.1f), mla_out(static_cast<size_t>(lanes * latent)),
      scratch(static_cast<size_t>(k.mla_scratch_floats(channels, latent)));
  std::vector<const float*> queries(static_cast<size_t>(lanes), query.data()), page_list;
  std::vector<int64_t> visible(static_cast<size_t>(lanes), positions);
  std::vector<float*> outs;
  for (int64_t i = 0; i < lanes; ++i) outs.push_back(mla_out.data() + i * latent);
  for (int64_t p = 0; p < positions; p += kMlaPage)
    page_list.push_back(pages.data() + p * channels);
  MlaLanes mla;
  mla.lanes = lanes;
  mla.channels = channels;
  mla.latent = latent;
  mla.q = queries.data();
  mla.visible = visible.data();
  mla.out = outs.data();
  mla.pages = page_list.data();
  mla.scale = 0.1f;
  mla.scratch = scratch.data();

  std::vector<Measurement> group;
  group.push_back({"fma", "GFLOP/s", 0, [&] { return fma_ceiling(k.isa, 0.01).amount / 1e9; }});
  // Four instructions of the fma units per state element, counted as eight operations.
  group.push_back({"kda, 256 tokens (4 of 4 fma)", "GFLOP/s", 0, [&] {
                     kda(tokens, 8);
                     return 8e-9 * static_cast<double>(8 * tokens * d * d);
                   }});
  group.push_back({"mla, 48 lanes, 4096 positions", "GFLOP/s", 0, [&] {
                     k.mla(mla);
                     return 2e-9 * static_cast<double>(lanes * positions * (channels + latent));
                   }});
  report(group, repetitions);
  std::vector<Measurement> decode;
  const int64_t bytes = layers * heads * d * d * 4;
  decode.push_back(
      {"read", "GB/s", 0, [&] { return read_ceiling(k.isa, states, bytes, 0).amount / 1e9; }});
  decode.push_back({"kda decode, read + write", "GB/s", 0, [&] {
                      kda(1, layers * heads);
                      return 2e-9 * static_cast<double>(bytes);
                    }});
  report(decode, repetitions);
  std::free(states);
}

void small_ones(const Kernels& k, int repetitions) {
  const int64_t n = 7168;
  std::vector<float> a(static_cast<size_t>(n), 0.5f), b(a), c(a);
  std::vector<std::byte> q(static_cast<size_t>(quantized_bytes(ActivationForm::kInt16, n)));
  std::vector<const float*> v(9, a.data());
  const auto thousand = [&](const char* name, std::function<void()> f) {
    return Measurement{name, "G/s", 0, [f, n] {
                         for (int i = 0; i < 200; ++i) f();
                         return 200e-9 * static_cast<double>(n);
                       }};
  };
  std::vector<Measurement> group;
  group.push_back(thousand("add", [&] { k.add(a.data(), n, b.data()); }));
  group.push_back(
      thousand("rms_norm", [&] { k.rms_norm(a.data(), a.data(), 1e-5f, n, c.data()); }));
  group.push_back(thousand("mix_residuals of 9",
                           [&] { k.mix_residuals(v.data(), 9, a.data(), 1e-5f, n, c.data()); }));
  group.push_back(thousand("exp", [&] { k.exp(a.data(), n, c.data()); }));
  group.push_back(
      thousand("situ_mul", [&] { k.situ_mul(a.data(), a.data(), 4, 25, n, c.data()); }));
  group.push_back(thousand("quantize int16", [&] {
    k.quantize(ActivationForm::kInt16, Layout::kMxfp4Rows, a.data(), n, q.data());
  }));
  group.push_back(thousand("round_mxfp8", [&] { k.round_mxfp8(a.data(), n, c.data()); }));
  report(group, repetitions);
}

}  // namespace
}  // namespace k3

int main(int argc, char** argv) {
  using namespace k3;
  Isa isa = best_isa();
  for (const Isa known : isas()) {
    if (argc > 1 && std::strcmp(argv[1], name(known)) == 0) isa = known;
  }
  const int repetitions = argc > 2 ? std::atoi(argv[2]) : 15;
  const std::string only = argc > 3 ? argv[3] : "";  // a product, "other" or nothing
  const Kernels& k = kernels(isa);
  std::printf("%s, one thread: median [best], per cent of the group's first line\n", name(isa));
  stream_products(k, repetitions, only);
  tile_products(k, repetitions, only);
  if (only.empty() || only == "other") {
    kda_and_mla(k, repetitions);
    small_ones(k, repetitions);
  }
  return 0;
}
