// Where the ranks of a communicator meet, be they threads or processes: a folder, in which each leaves files that the
// others read. A file appears with all of its bytes.
#pragma once
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>

class Meeting {
  public:
    explicit Meeting(std::string folder) : folder_(std::move(folder)) {}

    // A new folder, whose path must fit into NCCL's unique id.
    static std::string made() {
        const char *given = std::getenv("TMPDIR");
        std::string path = std::string(given ? given : "/tmp") + "/nccl-XXXXXX";
        return mkdtemp(path.data()) ? path : "";
    }

    void leave(const std::string &name, const std::string &bytes) const {
        std::string path = folder_ + "/" + name;
        std::ofstream(path + ".part", std::ios::binary) << bytes;
        rename((path + ".part").c_str(), path.c_str());
    }

    std::optional<std::string> find(const std::string &name) const {
        std::ifstream file(folder_ + "/" + name, std::ios::binary);
        if (!file) return std::nullopt;
        return std::string{std::istreambuf_iterator<char>(file), {}};
    }

    void remove(const std::string &name) const { unlink((folder_ + "/" + name).c_str()); }

    // The last one takes the folder with it.
    void go(int rank) const {
        std::error_code ignored;
        leave("gone-" + std::to_string(rank), "");
        std::string size = find("size").value_or("1");
        for (int i = 0; i < std::stoi(size); ++i)
            if (!find("gone-" + std::to_string(i))) return;
        std::filesystem::remove_all(folder_, ignored);
    }

  private:
    std::string folder_;
};
