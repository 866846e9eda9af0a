#include "train/dataset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"

namespace k3 {
namespace {

// Documents 0 .. count-1; document i is i + 1 tokens long and says so in each.
TokenDataset numbered(MemoryStorage& storage, int count) {
  TokenWriter writer(storage, "a", 1000);
  for (int i = 0; i < count; ++i) writer.add(std::vector<int32_t>(static_cast<size_t>(i + 1), i));
  writer.add({});
  EXPECT_EQ(writer.documents(), count);
  writer.commit();
  return TokenDataset::open(storage, {"a"}, 1000);
}

TEST(TokenDataset, ComesBackAsWritten) {
  MemoryStorage storage;
  const TokenDataset data = numbered(storage, 5);
  ASSERT_EQ(data.documents(), 5);
  EXPECT_EQ(data.tokens(), 15);
  for (int i = 0; i < 5; ++i) {
    const auto text = data.document(i);
    EXPECT_EQ(text.size(), static_cast<size_t>(i + 1));
    EXPECT_TRUE(std::all_of(text.begin(), text.end(), [&](int32_t id) { return id == i; }));
  }
  EXPECT_EQ(TokenDataset::open(storage, {"a", "a"}, 1000).documents(), 10);
  EXPECT_THROW(TokenDataset::open(storage, {"a"}, 4), InputError);
  EXPECT_THROW(TokenDataset::open(storage, {"b"}, 4), InputError);
  EXPECT_THROW(TokenWriter(storage, "c", 4).add(std::vector<int32_t>{4}), InputError);
}

// One epoch of rows: inputs and targets are neighbours in their document, and every token but the
// first of each document is a target once.
TEST(Packer, PacksEveryTokenOnce) {
  MemoryStorage storage;
  const TokenDataset data = numbered(storage, 40);
  for (const bool whole : {false, true})
    for (const int64_t length : {1, 7, 64, 1000}) {
      Packer packer(data, {.length = length, .seed = 3, .whole = whole});
      std::map<int32_t, int64_t> targets;
      while (packer.position().epoch == 0) {
        const PackedRow row = packer.next();
        ASSERT_LE(static_cast<int64_t>(row.ids.size()), length);
        ASSERT_EQ(row.ids.size(), row.targets.size());
        ASSERT_EQ(row.starts.front(), 0);
        ASSERT_TRUE(std::is_sorted(row.starts.begin(), row.starts.end()));
        for (size_t i = 0; i < row.ids.size(); ++i) ASSERT_EQ(row.ids[i], row.targets[i]);
        for (size_t s = 0; s < row.starts.size(); ++s) {
          const auto begin = static_cast<size_t>(row.starts[s]);
          const size_t end =
              s + 1 < row.starts.size() ? static_cast<size_t>(row.starts[s + 1]) : row.ids.size();
          for (size_t i = begin; i < end; ++i) ASSERT_EQ(row.ids[i], row.ids[begin]);
          const auto inputs = static_cast<size_t>(row.ids[begin]);  // of the whole document
          if (whole && inputs <= static_cast<size_t>(length)) {
            ASSERT_EQ(end - begin, inputs);
          }
        }
        if (packer.position().epoch == 0)
          for (const int32_t id : row.targets) ++targets[id];
      }
      int64_t sum = 0;
      for (const auto& [id, count] : targets) {
        EXPECT_LE(count, id) << length;
        sum += count;
      }
      EXPECT_GE(sum, 780 - length);  // all but those of the row that the epoch ended in
      if (length == 1000) {
        EXPECT_EQ(sum, 0);
      }
    }
}

TEST(Packer, ContextIsReadAndNotAskedFor) {
  MemoryStorage storage;
  TokenWriter writer(storage, "a", 100);
  writer.add(std::vector<int32_t>{context_only(7), context_only(0), 5, 6, context_only(99)});
  writer.commit();
  const TokenDataset data = TokenDataset::open(storage, {"a"}, 100);
  const PackedRow row = Packer(data, {.length = 4}).next();
  EXPECT_EQ(row.ids, (std::vector<int32_t>{7, 0, 5, 6}));
  EXPECT_EQ(row.targets, (std::vector<int32_t>{-1, 5, 6, -1}));
  EXPECT_THROW(TokenWriter(storage, "c", 4).add(std::vector<int32_t>{context_only(4)}), InputError);
  EXPECT_THROW(TokenDataset::open(storage, {"a"}, 99), InputError);
}

TEST(Packer, GoesOnWhereItStood) {
  MemoryStorage storage;
  const TokenDataset data = numbered(storage, 30);
  const Packer::Options options{.length = 50, .seed = 9};
  Packer whole(data, options);
  for (int i = 0; i < 40; ++i) {
    Packer resumed(data, options);
    resumed.seek(whole.position());
    const PackedRow a = whole.next(), b = resumed.next();
    ASSERT_EQ(a.ids, b.ids);
    ASSERT_EQ(a.targets, b.targets);
    ASSERT_EQ(a.starts, b.starts);
    ASSERT_EQ(whole.position(), resumed.position());
  }
  EXPECT_GT(whole.position().epoch, 1);
  EXPECT_THROW(whole.seek({0, 30, 0}), InputError);
  EXPECT_THROW(whole.seek({-1, 0, 0}), InputError);
}

TEST(Packer, EpochsAndSeedsHaveOrdersOfTheirOwn) {
  MemoryStorage storage;
  const TokenDataset data = numbered(storage, 30);
  const auto first = [&](uint64_t seed, int64_t epoch) {
    Packer packer(data, {.length = 400, .seed = seed});
    packer.seek({epoch, 0, 0});
    return packer.next().ids;
  };
  EXPECT_EQ(first(1, 0), first(1, 0));
  EXPECT_NE(first(1, 0), first(1, 1));
  EXPECT_NE(first(1, 0), first(2, 0));
}

TEST(Packer, HeldOutDocumentsAreOnOneSideOnly) {
  MemoryStorage storage;
  numbered(storage, 300);
  const TokenDataset data = TokenDataset::open(storage, {"a", "a"}, 1000);  // each text twice
  Packer::Options options{.length = 5, .seed = 4, .held_out = 0.1};
  const Packer train(data, options);
  options.validation = true;
  const Packer validation(data, options);
  EXPECT_EQ(train.documents() + validation.documents(), 598);  // those of one token are left out
  EXPECT_GT(validation.documents(), 20);
  EXPECT_LT(validation.documents(), 120);
  EXPECT_EQ(validation.documents() % 2, 0);  // both copies
  options.held_out = 0;
  EXPECT_THROW(Packer(data, options), InputError);
}

}  // namespace
}  // namespace k3
